// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"os"
	"syscall"
	"testing"
)

// inRoot gives a program another root folder.
func inRoot(t *testing.T, root string) *syscall.SysProcAttr {
	t.Helper()
	attributes := &syscall.SysProcAttr{Chroot: root}
	if os.Getuid() != 0 { // who may have another root folder only as the root of a namespace
		attributes.Cloneflags = syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	}
	return attributes
}
