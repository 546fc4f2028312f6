// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the operator on local control planes. In the same run, it compares the operator with simpler
// clients and with the algorithm of the ReplicaSet controller. With -base, it compares the operator with the operator
// of another commit.
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
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"container.training/useless/hack/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	run, args := measure, os.Args[1:]
	if len(args) > 0 {
		if args[0] == "report" {
			run = report
		} else if clients[args[0]] != nil {
			run = runClient
		}
	}
	if err := run(ctx, args); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// runClient runs a client until a signal arrives. Its command line is: bench NAME KUBECONFIG.
func runClient(ctx context.Context, args []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", args[1])
	if err != nil {
		return err
	}
	config.QPS = -1
	if err := clients[args[0]](ctx, config); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A bench is one run of experiments.
type bench struct {
	programs  cluster.Programs
	ours      *revision
	base      *revision   // nil without -base
	revisions []*revision // ours and base
	quick     bool
	start     time.Time
	current   string   // name of the running experiment
	file      *os.File // receives the records
	records   results
}

// large returns the size of the experiment large, which depends on the flags -quick and -base.
func (b *bench) large() size {
	switch {
	case b.quick:
		return size{1_000, 10}
	case b.base != nil:
		return size{2_000, 10}
	}
	return size{10_000, 10}
}

// record writes a record. If the record has no experiment, record sets the name of the running experiment.
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
	name string
	run  func(ctx context.Context, b *bench) error
}

// experiments returns the experiment with a name, or all experiments except big. If comparing is true, it returns only
// experiments that can compare revisions.
func experiments(only string, comparing bool) []experiment {
	all := []experiment{
		{"flips", measureFlips}, {"convergence", convergence}, {"large", large}, {"failover", failover},
		{"schedules", schedules}, {"versions", versions}, {"big", big},
	}
	if comparing {
		all = all[:3]
	}
	return slices.DeleteFunc(all, func(e experiment) bool {
		return only == "" && e.name == "big" || only != "" && e.name != only
	})
}

type options struct {
	out   string // folder of the results
	quick bool
	only  string // name of an experiment, or empty
	base  string // a commit, or empty
}

func measure(ctx context.Context, args []string) (err error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", "bin/bench", "folder for the results")
	flags.BoolVar(&o.quick, "quick", false, "run fewer and smaller measurements")
	flags.StringVar(&o.only, "only", "", "run one experiment: flips, convergence, large, failover, schedules, versions or big")
	flags.StringVar(&o.base, "base", "", "compare with the operator of this commit: flips, convergence and large")
	if err := flags.Parse(args); err != nil {
		return err
	}
	selected := experiments(o.only, o.base != "")
	if len(selected) == 0 {
		return fmt.Errorf("invalid value %q for flag -only: the experiment does not exist, or cannot compare revisions", o.only)
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	failed := b.runAll(ctx, selected)
	return errors.Join(failed, printFigures(os.Stdout, b.records), b.file.Close())
}

// runAll runs experiments. If one fails, it continues with the next one.
func (b *bench) runAll(ctx context.Context, selected []experiment) (failed error) {
	for _, e := range selected {
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
	if b.ours, err = newRevision(ctx, "ours", ".", o.out); err != nil {
		return nil, err
	}
	b.revisions = []*revision{b.ours}
	if o.base != "" {
		if b.base, err = checkOut(ctx, o.base, o.out); err != nil {
			return nil, err
		}
		b.revisions = append(b.revisions, b.base)
	}
	machine, err := describeMachine(ctx, b.programs)
	if err != nil {
		return nil, err
	}
	if o.quick {
		machine.Values["quick"] = 1
	}
	if o.base != "" {
		machine.Text["base"] = o.base
	}
	if b.file, err = os.Create(filepath.Join(o.out, resultsFile)); err != nil {
		return nil, err
	}
	return b, b.record(machine)
}
