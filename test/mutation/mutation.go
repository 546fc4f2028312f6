// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutation ends a test that changes an object of a cache, and the program with it. Tests import it for that alone:
// client-go asks the environment when it is initialized, which comes after the initialization of a package that sorts
// before it and imports nothing of it.
package mutation

import "os"

func init() {
	// Compares the objects of each informer with copies of them, every second.
	if err := os.Setenv("KUBE_CACHE_MUTATION_DETECTOR", "true"); err != nil {
		panic(err)
	}
}
