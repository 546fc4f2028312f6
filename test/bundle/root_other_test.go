// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bundle

import (
	"syscall"
	"testing"
)

// inRoot skips the test. On systems other than Linux, a new root folder requires root and a copy of the system's
// libraries.
func inRoot(t *testing.T, _ string) *syscall.SysProcAttr {
	t.Helper()
	t.Skip("the scorecard's tests need another root folder, which works only on Linux; CI runs them")
	return nil
}
