// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import "syscall"

// dieWithParent has the kernel kill the program when this process ends without having stopped it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
