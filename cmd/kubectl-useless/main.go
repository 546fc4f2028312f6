// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-useless is the kubectl plugin "kubectl useless".
package main

import (
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"container.training/useless/internal/plugin"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// client-go logs each failed attempt to reach a cluster. The error at the end is enough.
	klog.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NewWarningWriter(os.Stderr, rest.WarningWriterOptions{Deduplicate: true}))
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	command := plugin.New(streams, clock.RealClock{})
	command.Version = version
	command.SetVersionTemplate("{{.Version}}\n") // like the operator's flag --version
	if err := command.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
