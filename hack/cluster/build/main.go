// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command build compiles the missing programs of a control plane, and shows its progress. With the argument prometheus,
// it also compiles Prometheus. Tests compile these programs too, but go test does not show the progress.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"container.training/useless/hack/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	_, err := cluster.Build(ctx, os.Stderr)
	if err == nil && slices.Contains(os.Args[1:], "prometheus") {
		_, err = cluster.BuildPrometheus(ctx, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}
