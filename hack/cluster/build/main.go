// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command build compiles the missing programs of a control plane, and shows its progress. Tests compile them too, but
// go test does not show the progress.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"container.training/useless/hack/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := cluster.Build(ctx, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}
