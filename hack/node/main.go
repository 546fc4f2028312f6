// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command node runs one real Kubernetes node with OLM, offline, on the machine that it is started on: a control plane,
// kubelet, containerd, a name server and an image registry, from source and as ordinary processes in namespaces of
// their own. With the process that runs them everything ends: processes, containers, mounts and links.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const usage = `Usage: node COMMAND
  up               builds what is missing, starts the node and returns when it can be used
  down             stops the node and removes everything of it
  exec CMD ARG...  runs a command in the node's network, as its administrator
  restart PROGRAM  kills a program of the node and starts it again; returns when it can be used
  logs [PROGRAM]   shows what a program of the node has written, or which programs there are`

func main() {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

// run runs a command; those that the usage does not name are for the node itself.
func run(ctx context.Context, args []string) error {
	command, args := first(args)
	n, err := newNode()
	if err != nil {
		return err
	}
	switch {
	case command == "up" && len(args) == 0:
		return n.up(ctx)
	case command == "down" && len(args) == 0:
		return n.down(ctx)
	case command == "exec" && len(args) > 0:
		return n.exec(args)
	case command == "restart" && len(args) == 1:
		return n.restart(args[0])
	case command == "logs" && len(args) <= 1:
		return n.logs(args)
	case command == initCommand:
		return runInit(n)
	case command == superviseCommand:
		return supervise(ctx, n)
	default:
		return errors.New(usage)
	}
}

func first(args []string) (string, []string) {
	if len(args) == 0 {
		return "", nil
	}
	return args[0], args[1:]
}
