// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command node runs a real Kubernetes node with OLM on this computer. The node consists of a control plane, kubelet,
// kube-proxy, containerd, metrics-server, a DNS server and an image registry. The command builds them from source and
// runs them as processes in new Linux namespaces. A running node needs no internet. When the node's first process ends,
// all its processes, containers, mounts and network interfaces end too.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

var errUsage = errors.New(`usage: node COMMAND
  build            builds the missing programs of the node; needs no root
  up               builds the missing programs, starts the node and returns when it is ready
  down             stops the node and removes its files and cgroups
  exec CMD ARG...  runs a command in the node's network, with the permissions of cluster-admin
  restart PROGRAM  kills a program of the node and starts it again; returns when it is ready
  logs [PROGRAM]   prints the log of a program; without PROGRAM, prints the names of all logs
USELESS_NODE_NAME=NAME selects another node; nodes with different names can run at the same time`)

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

// command is a command of this program. Some commands are for users. The others are for the node's own processes.
type command struct {
	least, most int // number of arguments
	run         func(context.Context, *node, []string) error
}

const unlimited = math.MaxInt

var commands = map[string]command{
	"build":          {0, 0, func(ctx context.Context, _ *node, _ []string) error { return build(ctx) }},
	"up":             {0, 0, func(ctx context.Context, n *node, _ []string) error { return n.up(ctx) }},
	"down":           {0, 0, func(ctx context.Context, n *node, _ []string) error { return n.down(ctx) }},
	"exec":           {1, unlimited, func(_ context.Context, n *node, args []string) error { return n.exec(args) }},
	"restart":        {1, 1, func(_ context.Context, n *node, args []string) error { return n.restart(args[0]) }},
	"logs":           {0, 1, func(_ context.Context, n *node, args []string) error { return n.logs(args) }},
	initCommand:      {0, 0, func(ctx context.Context, n *node, _ []string) error { return runInit(ctx, n) }},
	superviseCommand: {0, 0, func(ctx context.Context, n *node, _ []string) error { return supervise(ctx, n) }},
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	c, known := commands[args[0]]
	args = args[1:]
	if !known || len(args) < c.least || len(args) > c.most {
		return errUsage
	}
	n, err := newNode()
	if err != nil {
		return err
	}
	return c.run(ctx, n, args)
}
