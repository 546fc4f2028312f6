// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cachemutation enables client-go's mutation detector, which panics if a program changes an object in a cache.
// Tests import the package only for its init function, which sets an environment variable. client-go reads the variable
// in its own init function, so this package must be initialized first. Go initializes independent packages in the order
// of their import paths. This package does not import client-go, and its path sorts first.
package cachemutation

import "os"

func init() {
	// The detector compares the objects of each informer with copies, every second.
	if err := os.Setenv("KUBE_CACHE_MUTATION_DETECTOR", "true"); err != nil {
		panic(err)
	}
}
