// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package integration

// init disables the comparison of times in TestScheduleBurst, because the race detector slows down the operator more
// than the minimal client.
func init() { compareTimes = func() bool { return false } }
