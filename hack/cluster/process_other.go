// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import "syscall"

// dieWithParent does nothing: only Linux ends a program with its parent.
func dieWithParent(*syscall.SysProcAttr) {}
