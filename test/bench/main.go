// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the operator against the least that its work can cost: a bare loop of a client, the controller of
// the tutorial, and Kubernetes' own ReplicaSet controller, all in one run on one machine. Every figure is a ratio, or a
// count.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"container.training/useless/hack/cluster"
	"container.training/useless/test/bench/baseline"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	run := measure
	if len(os.Args) > 1 && os.Args[1] == "contend" {
		run = contend
	}
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// contend runs a contender until it is told to stop. It serves the count of its requests, as the operator does.
func contend(ctx context.Context, args []string) error {
	key, port, name := args[1], args[2], args[3]
	config, err := clientcmd.BuildConfigFromFlags("", key)
	if err != nil {
		return err
	}
	config.QPS = -1
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{})) }()
	if err := runContender(ctx, config, name, args[4:]); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func runContender(ctx context.Context, config *rest.Config, name string, args []string) error {
	switch name {
	case "tutorial":
		return baseline.Tutorial{}.Run(ctx, config)
	case "sample":
		return baseline.Sample{}.Run(ctx, config)
	}
	concurrency, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	return baseline.Bare{Concurrency: concurrency, Informer: name == "bare+informer"}.Run(ctx, config)
}

// A bench is one run of measurements.
type bench struct {
	programs cluster.Programs
	ours     *revision
	base     *revision // nil if there is nothing to compare with
	records  *records
	start    time.Time
}

// say tells how far the run is.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7.1fs  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}

func measure(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	out := flags.String("out", "bin/bench", "folder for the results")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(*out, "results.jsonl"))
	if err != nil {
		return err
	}
	defer file.Close()
	b := &bench{records: &records{to: file}, start: time.Now()}
	if b.programs, err = cluster.Build(ctx, os.Stderr); err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	outDir, err := filepath.Abs(*out)
	if err != nil {
		return err
	}
	if b.ours, err = newRevision(ctx, "ours", "", dir, outDir); err != nil {
		return err
	}
	var sz size
	if _, err := fmt.Sscanf(flags.Arg(0), "%dx%d", &sz.machines, &sz.switches); err != nil {
		return err
	}
	all := map[string]contender{
		"ours": asInstalled(b.ours), "bare": fromBaseline("bare", "32"), "bare+informer": fromBaseline("bare+informer", "32"),
		"tutorial": fromBaseline("tutorial"), "sample": fromBaseline("sample"), "replicaset": replicaSetController(),
	}
	var contenders []contender
	for _, name := range strings.Split(flags.Arg(1), ",") {
		contenders = append(contenders, all[name])
	}
	r := &race{b, sz, 5, 20 * time.Second}
	return r.run(ctx, slices.Clip(contenders))
}
