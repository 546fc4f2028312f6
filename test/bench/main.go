// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the operator on local control planes. In the same run, it compares the operator with a minimal
// client and the ReplicaSet controller, or with the operator of another commit.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"container.training/useless/hack/cluster"
	"container.training/useless/test/bench/baseline"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	run, args := measure, os.Args[1:]
	if len(args) > 0 {
		switch args[0] {
		case "minimal":
			run = runMinimal
		case "report":
			run = report
		}
	}
	if err := run(ctx, args); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// runMinimal runs the minimal client until a signal ends it: bench minimal KUBECONFIG.
func runMinimal(ctx context.Context, args []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", args[1])
	if err != nil {
		return err
	}
	config.QPS = -1
	if err := baseline.Converge(ctx, config); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A bench is one run of experiments.
type bench struct {
	programs cluster.Programs
	ours     *revision
	base     *revision // nil without -base
	quick    bool
	start    time.Time
	current  string   // name of the running experiment
	file     *os.File // where the records are written
	records  results
}

// revisions returns the revisions to measure.
func (b *bench) revisions() []*revision {
	if b.base == nil {
		return []*revision{b.ours}
	}
	return []*revision{b.ours, b.base}
}

// large returns the largest number of Machines and Switches that the run measures.
func (b *bench) large() size {
	if b.quick {
		return size{1_000, 10}
	}
	return size{10_000, 10}
}

// record writes a record. Its experiment is the running one by default.
func (b *bench) record(r Record) error {
	r.Experiment = cmp.Or(r.Experiment, b.current)
	b.records = append(b.records, r)
	return json.NewEncoder(b.file).Encode(r)
}

// log prints progress.
func (b *bench) log(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7.1fs  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}

// An experiment measures one property of the operator.
type experiment struct {
	name     string
	run      func(ctx context.Context, b *bench) error
	compares bool // it also measures the revision of -base
}

func experiments() []experiment {
	return []experiment{
		{name: "lateness", run: lateness, compares: true},
		{name: "failover", run: failover},
		{name: "convergence", run: convergence, compares: true},
		{name: "large", run: large},
	}
}

type options struct {
	out   string // folder of the results
	quick bool
	only  string // name of an experiment, or empty
	base  string // a commit, or empty
}

func measure(ctx context.Context, args []string) (err error) {
	all := experiments()
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = e.name
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", "bin/bench", "folder for the results")
	flags.BoolVar(&o.quick, "quick", false, "run fewer and smaller measurements")
	flags.StringVar(&o.only, "only", "", "run one experiment: "+strings.Join(names, ", "))
	flags.StringVar(&o.base, "base", "", "also measure the operator of this commit, and compare the two")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.only != "" && !slices.Contains(names, o.only) {
		return fmt.Errorf("unknown experiment %q: use one of %s", o.only, strings.Join(names, ", "))
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	failed := b.runAll(ctx, o.only)
	return errors.Join(failed, printFigures(os.Stdout, b.records), b.file.Close())
}

// runAll runs all experiments, or one. It continues after a failure.
func (b *bench) runAll(ctx context.Context, only string) (failed error) {
	for _, e := range experiments() {
		if only != "" && only != e.name || b.base != nil && !e.compares {
			continue
		}
		b.current = e.name
		if err := e.run(ctx, b); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", e.name, err))
			b.log("%s failed: %v", e.name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

func newBench(ctx context.Context, o options) (b *bench, err error) {
	if o.out, err = filepath.Abs(o.out); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return nil, err
	}
	b = &bench{quick: o.quick, start: time.Now(), current: "machine"}
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
	if b.file, err = os.Create(filepath.Join(o.out, resultsFile)); err != nil {
		return nil, err
	}
	return b, b.record(machine)
}
