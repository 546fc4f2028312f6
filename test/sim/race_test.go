// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim_test

// raceEnabled tells whether the race detector runs, with which all takes five times as long.
const raceEnabled = true
