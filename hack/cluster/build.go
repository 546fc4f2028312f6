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
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names of the programs.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	kubectl           = "kubectl"
)

// assetsVariable names the folder of programs that somebody else has built.
const assetsVariable = "KUBEBUILDER_ASSETS"

// progressInterval is how often a build says how far it is.
const progressInterval = 10 * time.Second

// buildSpace is about what the first build writes: 3 GiB of compiled and half a GiB of downloaded packages in Go's caches,
// the programs, and temporary files.
const buildSpace = 5 << 30

// Programs is the folder that has etcd, kube-apiserver, kube-controller-manager and kubectl.
type Programs string

// Path is where a program is.
func (p Programs) Path(name string) string { return filepath.Join(string(p), name) }

// missing names the programs that are not there.
func (p Programs) missing() (names []string) {
	for _, name := range []string{etcd, apiServer, controllerManager, kubectl} {
		if info, err := os.Stat(p.Path(name)); err != nil || !info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names
}

// Build returns the programs of a control plane. It takes those in the folder that KUBEBUILDER_ASSETS names where all
// of them are there, and otherwise compiles the release that hack/tools/kubernetes.mod pins, once: the programs stay
// in the user's cache folder. While it works it says so, in lines that it writes to progress.
func Build(ctx context.Context, progress io.Writer) (Programs, error) {
	if assets := Programs(os.Getenv(assetsVariable)); assets != "" {
		missing := assets.missing()
		if len(missing) == 0 {
			return assets, nil
		}
		fmt.Fprintf(progress, "%s=%s has no %s: building Kubernetes instead\n",
			assetsVariable, assets, strings.Join(missing, ", "))
	}
	b, err := newBuild(progress)
	if err != nil {
		return "", err
	}
	if len(b.programs.missing()) == 0 {
		return b.programs, nil
	}
	if err := b.run(ctx); err != nil {
		return "", fmt.Errorf("build Kubernetes: %w", err)
	}
	return b.programs, nil
}

// build is one way to compile the programs; another one has another folder.
type build struct {
	progress io.Writer
	tools    string // the folder of kubernetes.mod
	version  string
	ldflags  string
	programs Programs
	started  time.Time
}

var kubernetesVersion = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\S+)`)

func newBuild(progress io.Writer) (*build, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	b := &build{progress: progress, tools: filepath.Join(root, "hack", "tools")}
	mod, err := os.ReadFile(filepath.Join(b.tools, "kubernetes.mod"))
	if err != nil {
		return nil, fmt.Errorf("read which Kubernetes to build: %w", err)
	}
	sum, err := os.ReadFile(filepath.Join(b.tools, "kubernetes.sum"))
	if err != nil {
		return nil, fmt.Errorf("read which Kubernetes to build: %w", err)
	}
	match := kubernetesVersion.FindSubmatch(mod)
	if match == nil {
		return nil, errors.New("hack/tools/kubernetes.mod requires no k8s.io/kubernetes")
	}
	b.version = string(match[1])
	// Without these the API server calls itself v0.0.0, and who asks for a newer one is refused.
	b.ldflags = fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
		"k8s.io/component-base/version", match[1], match[2], match[3])

	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the user's cache folder: %w", err)
	}
	key := sha256.New()
	fmt.Fprintf(key, "%s\n%s\n%s %s/%s\n%s", mod, sum, runtime.Version(), runtime.GOOS, runtime.GOARCH, b.ldflags)
	b.programs = Programs(filepath.Join(cache, "useless-operator", fmt.Sprintf("kubernetes-%.6x", key.Sum(nil))))
	return b, nil
}

// Root is the folder of the source tree that the working folder is in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "hack", "tools", "kubernetes.mod")); err == nil {
			return dir, nil
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return "", errors.New("find the source tree: the working folder is not inside it")
	}
}

// run compiles into a folder beside the final one and renames it, so what has the final name is complete.
func (b *build) run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(string(b.programs)), 0o755); err != nil {
		return err
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if len(b.programs.missing()) == 0 {
		return nil
	}

	b.started = time.Now()
	partial := Programs(string(b.programs) + ".partial")
	for _, dir := range []Programs{partial, b.programs} { // what a build that was killed, or somebody's rm, has left
		if err := os.RemoveAll(string(dir)); err != nil {
			return err
		}
	}
	defer os.RemoveAll(string(partial))
	if err := os.Mkdir(string(partial), 0o755); err != nil {
		return err
	}
	fmt.Fprintf(b.progress, "building Kubernetes %s, once: several minutes, up to %d GiB in Go's caches and %s\n",
		b.version, buildSpace>>30, b.programs)
	b.warnOfFullDisk()
	if err := b.compile(ctx, partial); err != nil {
		return err
	}
	// The package of etcd's main function is called server.
	if err := os.Rename(partial.Path("server"), partial.Path(etcd)); err != nil {
		return err
	}
	if err := os.Rename(string(partial), string(b.programs)); err != nil {
		return err
	}
	fmt.Fprintf(b.progress, "built Kubernetes %s in %.0f s\n", b.version, time.Since(b.started).Seconds())
	return nil
}

// lock waits until no other process builds the same programs.
func (b *build) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(string(b.programs)+".lock", os.O_CREATE|os.O_RDWR, 0o644)
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
			fmt.Fprintf(b.progress, "waiting for another build of Kubernetes %s\n", b.version)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// warnOfFullDisk only warns: most of what a build needs may be in Go's caches already.
func (b *build) warnOfFullDisk() {
	var disk unix.Statfs_t
	dir := filepath.Dir(string(b.programs))
	if unix.Statfs(dir, &disk) != nil {
		return
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < buildSpace {
		fmt.Fprintf(b.progress, "only %.1f GiB are free in %s\n", float64(free)/(1<<30), dir)
	}
}

// compile has the go command build all tools of kubernetes.mod.
func (b *build) compile(ctx context.Context, into Programs) error {
	packages := string(b.programs) + ".packages"
	defer os.Remove(packages)
	downloading := func() string { return lastLine(packages) }
	if err := b.goCommand(ctx, into, packages, downloading, "list", "-modfile=kubernetes.mod", "-deps", "tool"); err != nil {
		return err
	}
	total := lines(packages)

	log := string(b.programs) + ".log"
	compiling := func() string { // with -v, go build writes a line for each package that is not in its cache
		return fmt.Sprintf("compiled %d of at most %d packages", lines(log), total)
	}
	// The linker would drop what -dwarf=false keeps the compiler from making.
	return b.goCommand(ctx, into, log, compiling, "build", "-v", "-modfile=kubernetes.mod", "-trimpath",
		"-gcflags=all=-dwarf=false", "-ldflags", b.ldflags, "-o", string(into)+"/", "tool")
}

// goCommand runs the go command in hack/tools, and reports its state until it is done.
func (b *build) goCommand(ctx context.Context, temporary Programs, log string, state func() string, args ...string) error {
	path, err := exec.LookPath("go")
	if err != nil {
		return errors.New("the go command is not in PATH")
	}
	if err := os.RemoveAll(log); err != nil {
		return err
	}
	p, err := StartProcess(Command{
		Name: "go " + args[0],
		Path: path,
		Args: args,
		// A go command that is interrupted leaves its temporary files; there they go with everything else. A compiler
		// that collects less garbage is faster.
		Env: []string{"CGO_ENABLED=0", "GOWORK=off", "GOGC=400", "GOTMPDIR=" + string(temporary)},
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
			fmt.Fprintf(b.progress, "building Kubernetes: %.0f s, %s\n", time.Since(b.started).Seconds(), state())
		}
	}
}

// explain turns what the go command says about a full disk, dozens of lines, into the one that names the file.
func (b *build) explain(err error) error {
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		if strings.Contains(line, unix.ENOSPC.Error()) {
			return fmt.Errorf("%s (a first build needs up to %d GiB in Go's caches and %s)",
				strings.TrimSpace(line), buildSpace>>30, filepath.Dir(string(b.programs)))
		}
	}
	return err
}

// lines counts the packages that the go command has named, beside what it says about downloads.
func lines(file string) int {
	text := tail(file, math.MaxInt64)
	return strings.Count(text, "\n") - strings.Count(text, "go: downloading ")
}

func lastLine(file string) string {
	text := strings.TrimSpace(tail(file, 1<<10))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
