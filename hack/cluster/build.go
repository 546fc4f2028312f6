// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// progressInterval is the time between two progress lines of a build.
const progressInterval = 10 * time.Second

// build compiles the programs of one release. Each version, platform and set of flags has its own folder.
type build struct {
	upstream

	progress io.Writer
	tools    string // the folder hack/tools
	version  string
	flags    []string
	folder   Programs
	started  time.Time
}

// build returns a folder that contains the programs with these names. It compiles the programs that are missing.
func (u upstream) build(ctx context.Context, progress io.Writer, names []string) (Programs, error) {
	b, err := u.newBuild(progress)
	if err != nil {
		return "", err
	}
	if len(b.folder.missing(names)) == 0 {
		return b.folder, nil
	}
	if err := b.run(ctx, names); err != nil {
		return "", fmt.Errorf("build %s: %w", b.name, err)
	}
	return b.folder, nil
}

func (u upstream) newBuild(progress io.Writer) (*build, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	b := &build{upstream: u, progress: progress, tools: filepath.Join(root, "hack", "tools")}
	pinned, err := b.readModule()
	if err != nil {
		return nil, fmt.Errorf("read the version of %s: %w", u.name, err)
	}
	ldflags := "-s -w"
	if u.stamp != nil {
		ldflags += " " + u.stamp(b.version)
	}
	// The linker flag -s removes the debug information (DWARF). With -dwarf=false, the compiler does not generate it,
	// which is faster.
	b.flags = []string{"-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=" + ldflags, "-tags=" + u.tags}

	key := sha256.New()
	fmt.Fprintf(key, "%s\n%s %s/%s\n%q", pinned, runtime.Version(), runtime.GOOS, runtime.GOARCH, b.flags)
	b.folder = Programs(filepath.Join(cache, fmt.Sprintf("%s-%.6x", u.file, key.Sum(nil))))
	return b, nil
}

// readModule sets b.version from the .mod file. It returns the content of all files that affect the programs: the .mod
// and .sum files, and our own source files.
func (b *build) readModule() ([]byte, error) {
	mod, err := os.ReadFile(filepath.Join(b.tools, b.file+".mod"))
	if err != nil {
		return nil, err
	}
	sum, err := os.ReadFile(filepath.Join(b.tools, b.file+".sum"))
	if err != nil {
		return nil, err
	}
	required := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(b.module) + ` (v\S+)`).FindSubmatch(mod)
	if required == nil {
		return nil, fmt.Errorf("hack/tools/%s.mod does not require %s", b.file, b.module)
	}
	b.version = string(required[1])
	pinned := slices.Concat(mod, []byte("\n"), sum)
	for _, pkg := range b.packages {
		if strings.HasSuffix(pkg, goFile) {
			source, err := os.ReadFile(filepath.Join(b.tools, pkg))
			if err != nil {
				return nil, err
			}
			pinned = append(pinned, source...)
		}
	}
	return pinned, nil
}

// CacheDir returns the folder for files that remain after a process ends: built programs, and the state of nodes.
func CacheDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder: %w", err)
	}
	return filepath.Join(cache, "useless-operator"), nil
}

// Root returns the root folder of the source tree that contains the working folder.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "hack", "tools", "go.mod")); err == nil {
			return dir, nil
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return "", errors.New("find the source tree: the working folder is not inside it")
	}
}

// run compiles into a temporary folder and then moves each program into the final folder. So each program in the final
// folder is complete.
func (b *build) run(ctx context.Context, names []string) error {
	if err := os.MkdirAll(filepath.Dir(string(b.folder)), 0o755); err != nil {
		return err
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	missing := b.folder.missing(names)
	packages := slices.DeleteFunc(slices.Clone(b.packages), func(pkg string) bool {
		return !slices.Contains(missing, programName(pkg))
	})
	if len(packages) == 0 {
		return nil
	}

	b.started = time.Now()
	partial := Programs(string(b.folder) + ".partial")
	if err := os.RemoveAll(string(partial)); err != nil { // a build that was killed leaves this folder
		return err
	}
	defer os.RemoveAll(string(partial))
	if err := os.Mkdir(string(partial), 0o755); err != nil {
		return err
	}
	fmt.Fprintf(b.progress, "building %s %s once: this needs some minutes, and up to %d GiB in Go's caches and %s\n",
		b.name, b.version, b.gigabytes, b.folder)
	b.warnOfFullDisk()
	if err := b.compile(ctx, partial, packages); err != nil {
		return err
	}
	if err := os.MkdirAll(string(b.folder), 0o755); err != nil {
		return err
	}
	for _, pkg := range packages {
		if err := os.Rename(partial.Path(defaultName(pkg)), b.folder.Path(programName(pkg))); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.progress, "built %s %s in %.0f s\n", b.name, b.version, time.Since(b.started).Seconds())
	return nil
}

// lock waits until no other process builds the same programs, and prevents other processes from building them.
func (b *build) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(string(b.folder)+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for waiting := false; ; waiting = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !waiting {
			fmt.Fprintf(b.progress, "waiting for another build of %s %s\n", b.name, b.version)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// warnOfFullDisk prints a warning if the disk may become full. It does not return an error, because Go's caches may
// already contain most of the output.
func (b *build) warnOfFullDisk() {
	var disk unix.Statfs_t
	dir := filepath.Dir(string(b.folder))
	if unix.Statfs(dir, &disk) != nil {
		return
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < uint64(b.gigabytes)<<30 {
		fmt.Fprintf(b.progress, "warning: only %.1f GiB are free in %s\n", float64(free)/(1<<30), dir)
	}
}

// compile runs go list to count the packages for the progress lines. Then it runs go build.
func (b *build) compile(ctx context.Context, into Programs, packages []string) error {
	modfile := "-modfile=" + b.file + ".mod"

	list := string(b.folder) + ".packages"
	defer os.Remove(list)
	downloading := func() string { return lastLine(list) }
	args := append([]string{"list", modfile, "-deps", "-tags=" + b.tags}, packages...)
	if err := b.goCommand(ctx, into, list, downloading, args...); err != nil {
		return err
	}
	total := lines(list)

	log := string(b.folder) + ".log"
	compiling := func() string { // go build -v writes a line for each package that is not in its cache
		return fmt.Sprintf("compiled %d of at most %d packages", lines(log), total)
	}
	args = slices.Concat([]string{"build", "-v", modfile, "-o", string(into) + "/"}, b.flags, packages)
	return b.goCommand(ctx, into, log, compiling, args...)
}

// goCommand runs the go command in hack/tools until it ends, and writes its output to the file log. Every
// progressInterval, it prints the result of state as progress. temporary is the folder for temporary files.
func (b *build) goCommand(
	ctx context.Context, temporary Programs, log string, state func() string, args ...string,
) error {
	program, err := exec.LookPath("go")
	if err != nil {
		return errors.New("the go command is not in PATH")
	}
	if err := os.RemoveAll(log); err != nil {
		return err
	}
	p, err := StartProcess(Command{
		Name: "go " + args[0],
		Path: program,
		Args: args,
		// An interrupted go command leaves temporary files, so GOTMPDIR is a folder that is removed in any case. A
		// higher GOGC makes the compiler faster. The user's GOFLAGS, such as -race, must not apply to these programs.
		Env: []string{"CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly", "GOGC=400", "GOTMPDIR=" + string(temporary)},
		Dir: b.tools,
		Log: log,
	})
	if err != nil {
		return err
	}
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.Done():
			return b.explain(p.Err())
		case <-ctx.Done():
			p.Kill()
			return context.Cause(ctx)
		case <-tick.C:
			fmt.Fprintf(b.progress, "building %s: %.0f s, %s\n", b.name, time.Since(b.started).Seconds(), state())
		}
	}
}

// explain shortens an error about a full disk to one line. The go command prints dozens of lines. explain keeps the
// line with the name of the file.
func (b *build) explain(err error) error {
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		if strings.Contains(line, unix.ENOSPC.Error()) {
			return fmt.Errorf("%s (a first build needs up to %d GiB in Go's caches and %s)",
				strings.TrimSpace(line), b.gigabytes, filepath.Dir(string(b.folder)))
		}
	}
	return err
}

// lines counts the packages in the output of the go command. It does not count lines about downloads.
func lines(file string) int {
	text := tail(file, math.MaxInt64)
	return strings.Count(text, "\n") - strings.Count(text, "go: downloading ")
}

func lastLine(file string) string {
	text := strings.TrimSpace(tail(file, 1<<10))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
