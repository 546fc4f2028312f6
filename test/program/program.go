// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package program builds the operator for tests that run it as a process of its own.
package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build compiles the operator into a file, whose path is absolute, with the race detector where there is a C compiler. Tests that
// call it are in a folder of test.
func Build(path string) error {
	args := []string{"build", "-o", path}
	if cgo, err := exec.Command("go", "env", "CGO_ENABLED").Output(); err == nil && strings.TrimSpace(string(cgo)) == "1" {
		args = append(args, "-race")
	}
	command := exec.Command("go", append(args, "./cmd")...)
	command.Dir = "../.."
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the operator: %w\n%s", err, out)
	}
	return nil
}

// Name gives a program another name, in a folder, and returns its path there. What a process asks of an API server has the name
// in its user agent, so that processes of one user can be told apart.
func Name(path, dir, name string) (string, error) {
	named := filepath.Join(dir, name)
	return named, os.Symlink(path, named)
}
