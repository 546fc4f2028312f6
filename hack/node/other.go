// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "node: this needs Linux; make demo and make test also run elsewhere")
	os.Exit(1)
}
