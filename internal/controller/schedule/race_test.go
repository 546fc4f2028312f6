// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package schedule

// init makes TestYear short: the race detector makes the simulation several times slower.
func init() { short = func() bool { return true } }
