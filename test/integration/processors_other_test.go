// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package integration

// separateProcessors skips the rest of the test.
func (b *burst) separateProcessors() {
	b.Helper()
	b.Skip("only Linux can separate the processors of the operator and of the API server")
}
