// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import (
	"os"
	"path/filepath"
	"syscall"
)

// dieWithParent does nothing. Only Linux kills the program when its parent ends.
func dieWithParent(*syscall.SysProcAttr) {}

// shortPath returns the full path of a file in an open folder. On Linux, a path in /proc is shorter.
func shortPath(dir *os.File, name string) string { return filepath.Join(dir.Name(), name) }
