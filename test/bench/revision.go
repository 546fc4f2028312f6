// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A revision is a version of the source: the working tree, or a commit.
type revision struct {
	name    string // "ours" or "base"
	dir     string // folder of its source
	manager string // path of its compiled operator
}

// newRevision compiles the operator in dir.
func newRevision(ctx context.Context, name, dir, bin string) (*revision, error) {
	r := &revision{name: name, dir: dir, manager: filepath.Join(bin, "manager-"+name)}
	args := []string{"build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", r.manager, "./cmd"}
	build := exec.CommandContext(ctx, "go", args...)
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the operator in %s: %w\n%s", dir, err, out)
	}
	return r, nil
}

// checkOut extracts the source of a commit from the repository and compiles it as "base".
func checkOut(ctx context.Context, commit, out string) (*revision, error) {
	dir := filepath.Join(out, "base")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	archive := dir + ".tar"
	if _, err := output(ctx, "git", "archive", "--output="+archive, commit); err != nil {
		return nil, fmt.Errorf("read commit %s: %w", commit, err)
	}
	if _, err := output(ctx, "tar", "-xf", archive, "-C", dir); err != nil {
		return nil, err
	}
	return newRevision(ctx, "base", dir, out)
}

// output returns the standard output of a command.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", name, err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
