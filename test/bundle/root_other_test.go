// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bundle

import (
	"syscall"
	"testing"
)

// inRoot would give a program another root folder. Elsewhere that takes root's rights, and the system's libraries in it.
func inRoot(t *testing.T, _ string) *syscall.SysProcAttr {
	t.Helper()
	t.Skip("the scorecard's tests need another root folder, and so Linux; CI runs them")
	return nil
}
