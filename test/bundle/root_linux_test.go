// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"os"
	"syscall"
	"testing"
)

// inRoot returns the attributes that start a program with another root folder.
func inRoot(t *testing.T, root string) *syscall.SysProcAttr {
	t.Helper()
	attributes := &syscall.SysProcAttr{Chroot: root}
	if os.Getuid() != 0 { // without root, chroot needs a user namespace
		attributes.Cloneflags = syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	}
	return attributes
}
