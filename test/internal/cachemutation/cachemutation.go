// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cachemutation enables client-go's mutation detector, which panics if a program changes an object in a cache.
// Tests import the package only for its init function. It sets an environment variable that client-go reads at its own
// initialization. Go initializes this package first, because its import path sorts before client-go's and it does not
// import client-go.
package cachemutation

import "os"

func init() {
	// The detector compares the objects of each informer with copies, every second.
	if err := os.Setenv("KUBE_CACHE_MUTATION_DETECTOR", "true"); err != nil {
		panic(err)
	}
}
