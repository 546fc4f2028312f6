// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim_test

// init makes the tests short, because the race detector makes simulations several times slower.
func init() { short = func() bool { return true } }
