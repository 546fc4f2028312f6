// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package executable builds the operator for tests that run it as a separate process. It also has helpers for tests
// that run other programs.
package executable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// BuildManager compiles the operator and returns the absolute path of the program. The program has the race detector if
// the test has it. A test that calls BuildManager must be in a folder directly below test. All packages share the
// program. The go command compiles it again only if the source has changed.
func BuildManager() (path string, err error) { return build(raceDetector) }

// BuildManagerWithoutRace is like BuildManager, but without the race detector, which multiplies the memory use.
func BuildManagerWithoutRace() (path string, err error) { return build(false) }

var (
	mu    sync.Mutex
	built = map[bool]string{} // the key is true for the program with the race detector
)

func build(race bool) (path string, err error) {
	mu.Lock()
	defer mu.Unlock()
	if path, ok := built[race]; ok {
		return path, nil
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", fmt.Errorf("build the operator: %w", err)
	}
	if path = filepath.Join(root, "bin", "test", "manager"); race {
		path += "-race"
	}
	if err := compile(root, path, race); err != nil {
		return "", fmt.Errorf("build the operator: %w", err)
	}
	built[race] = path
	return path, nil
}

// compile compiles the operator of the repository root into the file path.
func compile(root, path string, race bool) error {
	err := Inputs(filepath.Join(root, "api"), filepath.Join(root, "cmd"), filepath.Join(root, "internal"),
		filepath.Join(root, "go.mod"), filepath.Join(root, "go.sum"))
	if err != nil {
		return err
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	cgo := "0"
	if race {
		cgo = "1" // the race detector needs C code
	}
	// Without -buildvcs=false, go build runs git, which refuses a clone that belongs to another user.
	command := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", fmt.Sprintf("-race=%t", race), "-o", path, "./cmd")
	command.Dir, command.Env = root, append(os.Environ(), "CGO_ENABLED="+cgo)
	var problems strings.Builder
	command.Stderr = &problems
	if err := command.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, problems.String())
	}
	return nil
}

// Inputs makes cached test results depend on files, and on all files in folders. go test stores the size and time of
// each file that a test process opens or inspects. It does not notice files that only a child process reads.
func Inputs(paths ...string) error {
	for _, path := range paths {
		if err := filepath.WalkDir(path, func(_ string, _ fs.DirEntry, err error) error { return err }); err != nil {
			return err
		}
	}
	return nil
}

// lock waits until no other process builds the same program.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}

// Name creates a symbolic link with this name to a program, in the folder dir, and returns its path. The user agent of
// the program's requests contains the name of the link. So a test can distinguish processes that have the same
// username.
func Name(path, dir, name string) (string, error) {
	named := filepath.Join(dir, name)
	return named, os.Symlink(path, named)
}

// Output runs a command and returns its standard output, even if the command fails. If it fails, the returned error
// contains the standard error. The returned output never contains the standard error, because programs also write other
// messages there. For example, the go command reports downloads.
func Output(command *exec.Cmd) (string, error) {
	out, err := command.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", command, err)
	}
	return string(out), err
}
