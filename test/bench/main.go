// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the operator against the least that its work can cost: a bare loop of a client, the controller of
// the tutorial, and Kubernetes' own ReplicaSet controller, all in one run on one machine. Every figure is a ratio, or a
// count.
package main

import (
	"cmp"
	"context"
	"encoding/json"
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
	"golang.org/x/sync/errgroup"
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
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "contend":
			run = contend
		case "report":
			run = report
		}
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
	return baseline.Bare{Concurrency: concurrency, Informer: name == "bare+informer", Flip: slices.Contains(args, "flip")}.Run(ctx, config)
}

// A bench is one run of measurements.
type bench struct {
	programs cluster.Programs
	ours     *revision
	base     *revision // nil if there is nothing to compare with
	quick    bool
	rounds   int  // of experiments that do not say otherwise
	large    size // as many Machines as are measured
	start    time.Time
	current  string    // the experiment
	results  *os.File  // where the records go
	finalist *runner   // the operator in the largest race, which is to end it, if there is one
	settled  *world    // the large size at rest, if there is one
	stampede *stampede // that is prepared, if there is one

	background *errgroup.Group // what is measured beside other experiments

	concurrency string // of the bare loops
}

// revisions are all that are measured.
func (b *bench) revisions() []*revision {
	if b.base == nil {
		return []*revision{b.ours}
	}
	return []*revision{b.ours, b.base}
}

// as is the same run for another revision.
func (b *bench) as(rev *revision) *bench {
	other := *b
	other.ours = rev
	return &other
}

// recorded are the records so far.
func (b *bench) recorded() (results, error) {
	file, err := os.Open(b.results.Name())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readRecords(file)
}

// record writes down what the current experiment has measured, or another one that the record names.
func (b *bench) record(r Record) error {
	r.Experiment = cmp.Or(r.Experiment, b.current)
	return json.NewEncoder(b.results).Encode(r)
}

// say tells how far the run is.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7.1fs  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}

// An experiment measures one thing.
type experiment struct {
	name  string
	run   func(ctx context.Context, b *bench) error
	aside bool // another experiment runs it beside itself
}

// experiments are all there are, in their order. What is late is measured before the world of the largest race exists, which
// is used to the end and needs the processor now and then. The flood, which takes its time and measures none, has beside it
// whatever can be.
func experiments() []experiment {
	return []experiment{
		{name: "concurrency", run: concurrency},
		{name: "lateness", run: lateness},
		{name: "largest", run: largest},
		{name: "flood", run: flood},
		{name: "idle", run: idle, aside: true},
		{name: "memory", run: cacheMemory, aside: true},
		{name: "herd", run: herd},
		{name: "failover", run: failover},
		{name: "noop", run: noOp},
		{name: "conversion", run: conversions},
		{name: "convergence", run: convergence},
		{name: "large", run: large},
	}
}

// comparing are the experiments that measure another revision, too, if there is one.
var comparing = []string{"convergence", "noop", "lateness"}

type options struct {
	out   string // folder of the results
	quick bool
	only  string
	base  string // a commit
}

func measure(ctx context.Context, args []string) (err error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", "bin/bench", "folder for the results")
	flags.BoolVar(&o.quick, "quick", false, "measure less, and fewer Machines")
	flags.StringVar(&o.only, "only", "", "run one experiment: "+strings.Join(names(), ", "))
	flags.StringVar(&o.base, "base", "", "measure the operator of this commit, too, and compare the two")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.only != "" && !slices.Contains(names(), o.only) {
		return fmt.Errorf("no experiment is called %q: take one of %s", o.only, strings.Join(names(), ", "))
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	failed := b.runAll(ctx, o.only)
	records, err := b.recorded()
	if err != nil {
		return err
	}
	return errors.Join(printFigures(os.Stdout, records), failed)
}

// runAll runs all experiments, or one. Those after one that fails are run all the same.
func (b *bench) runAll(ctx context.Context, only string) (failed error) {
	for _, e := range experiments() {
		if only != "" && only != e.name || only == "" && e.aside || b.base != nil && !slices.Contains(comparing, e.name) {
			continue
		}
		b.current = e.name
		if err := e.run(ctx, b); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", e.name, err))
			b.say("%s failed: %v", e.name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed, b.background.Wait())
}

// runAside runs an experiment in a process of its own, and takes its records.
func (b *bench) runAside(ctx context.Context, name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	out := filepath.Join(filepath.Dir(b.results.Name()), name)
	args := []string{"-only", name, "-out", out, fmt.Sprintf("-quick=%t", b.quick)}
	if _, err := output(ctx, self, args...); err != nil {
		return err
	}
	file, err := os.Open(filepath.Join(out, resultsFile))
	if err != nil {
		return err
	}
	defer file.Close()
	records, err := readRecords(file)
	if err != nil {
		return err
	}
	records = slices.DeleteFunc(records, func(r Record) bool { return r.Experiment != name })
	for _, r := range records {
		err = errors.Join(err, json.NewEncoder(b.results).Encode(r))
	}
	b.say("%s: %d measurements", name, len(records))
	return err
}

// stop ends what outlives its experiment.
func (b *bench) stop() error {
	err := b.results.Close()
	if b.finalist != nil {
		err = errors.Join(err, b.finalist.world.stop())
	}
	if b.settled != nil {
		err = errors.Join(err, b.settled.stop())
	}
	if b.stampede != nil {
		err = errors.Join(err, b.stampede.stop())
	}
	return err
}

func names() (names []string) {
	for _, e := range experiments() {
		names = append(names, e.name)
	}
	return names
}

func newBench(ctx context.Context, o options) (b *bench, err error) {
	if o.out, err = filepath.Abs(o.out); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return nil, err
	}
	b = &bench{quick: o.quick, rounds: 5, large: size{10_000, 10}, start: time.Now(), background: &errgroup.Group{}, concurrency: "32"}
	if o.quick {
		b.large = size{1_000, 10}
	}
	if b.programs, err = cluster.Build(ctx, os.Stderr); err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if b.ours, err = newRevision(ctx, "ours", dir, o.out); err != nil {
		return nil, err
	}
	if o.base != "" {
		if b.base, err = checkOut(ctx, o.base, o.out); err != nil {
			return nil, err
		}
	}
	machine, err := describeMachine(ctx, b.programs)
	if err != nil {
		return nil, err
	}
	if o.quick {
		machine.Values["quick"] = 1
	}
	if b.results, err = os.Create(filepath.Join(o.out, resultsFile)); err != nil {
		return nil, err
	}
	b.current = "machine"
	return b, b.record(machine)
}
