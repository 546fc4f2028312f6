// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"container.training/useless/hack/cluster"
)

// large measures what depends on how many Machines there are: how the operator starts among them and what memory it needs,
// and how long the API server lists them in each version.
func large(ctx context.Context, b *bench) error {
	if err := b.background.Wait(); err != nil {
		return err
	}
	w, err := b.settle(ctx)
	if err != nil {
		return err
	}
	for _, measure := range []func(context.Context, *world, int) error{b.restart, b.restartWhileEdited} {
		for round := range b.rounds {
			if err := measure(ctx, w, round+1); err != nil {
				return err
			}
		}
	}
	if err := w.serveWebhooks(ctx); err != nil {
		return err
	}
	if err := b.joins(ctx, w); err != nil {
		return err
	}
	if err := b.listing(ctx, w); err != nil {
		return err
	}
	return b.coldCache(ctx, w)
}

// settle returns the world in which as many Machines as are measured are at rest, and nothing runs but the control plane.
func (b *bench) settle(ctx context.Context) (w *world, err error) {
	if b.settled == nil {
		if b.settled, err = b.resting(ctx, b.large); err != nil {
			return nil, err
		}
	}
	b.settled.quiet()
	return b.settled, nil
}

// resting returns a world in which so many Machines are at rest: the operator has given one its switches, of which the others
// are copies.
func (b *bench) resting(ctx context.Context, s size) (*world, error) {
	b.say("%s: preparing", s)
	w, err := newWorld(ctx, b.programs, b.ours, worldOptions{})
	if err != nil {
		return nil, err
	}
	err = w.populate(ctx, machines, 1, s.switches)
	if err == nil {
		err = w.bringToRest(ctx)
	}
	if err == nil {
		err = w.multiply(ctx, s.machines)
	}
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

// bringToRest has the operator do all that there is to do for Machines.
func (w *world) bringToRest(ctx context.Context) error {
	o, err := w.startManager(w.rev.name)
	if err != nil {
		return err
	}
	defer w.end(o)
	return w.awaitConverged(ctx, machines)
}

// end ends an operator that has done its part.
func (w *world) end(o *operator) {
	o.Kill()
	w.processes = slices.DeleteFunc(w.processes, func(p *cluster.Process) bool { return p == o.Process })
}

// quiet ends everything but the control plane.
func (w *world) quiet() {
	for _, p := range w.processes {
		p.Kill()
	}
	w.processes = nil
}

// restart starts the operator as it is installed, and records how long it takes to look at every Machine, what it writes
// meanwhile, and what memory it needs.
func (b *bench) restart(ctx context.Context, w *world, round int) error {
	before, err := w.calls(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	o, err := w.startManager(b.ours.name, "--webhooks")
	if err != nil {
		return err
	}
	defer w.quiet()
	if err := o.awaitReconciles(ctx, b.large.machines); err != nil {
		return err
	}
	r := Record{Case: "start", Contender: b.ours.name, Round: round, Values: map[string]float64{"seconds": time.Since(start).Seconds()}}
	if r.Values["cpu_seconds"], err = cpuSeconds(o.Process); err != nil {
		return err
	}
	if r.Values["resident_bytes"], r.Values["peak_bytes"], err = memory(o.Process); err != nil {
		return err
	}
	after, err := w.calls(ctx)
	if err != nil {
		return err
	}
	r.Values["writes"] = writes(after) - writes(before)
	b.say("%s: looked at all of them after %.1fs, with %.0f writes and at most %.0f MiB of memory", b.large,
		r.Values["seconds"], r.Values["writes"], r.Values["peak_bytes"]/(1<<20))
	return b.record(r)
}

// writes are the calls that change something, successful or not.
func writes(calls map[string]float64) (sum float64) {
	for name, n := range calls {
		if concerns(name) && !strings.HasPrefix(name, "LIST ") && !strings.HasPrefix(name, "WATCH ") && !strings.HasPrefix(name, "GET ") {
			sum += n
		}
	}
	return sum
}

// awaitReconciles waits until the operator has done so many reconciles of Machines.
func (o *operator) awaitReconciles(ctx context.Context, n int) error {
	return o.awaitMetric(ctx, "controller_runtime_reconcile_total", prometheus.Labels{"controller": "machine"}, n)
}

// awaitMetric waits until a metric is at least n.
func (o *operator) awaitMetric(ctx context.Context, name string, labels prometheus.Labels, n int) error {
	for {
		value, err := o.metric(ctx, name, labels)
		if err == nil && value >= float64(n) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.Done():
			return o.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// restartWhileEdited starts the operator while a user asks one Machine after the other for one switch more, and records how
// long they wait for it: who asks while the operator works off the backlog of its start, and who asks while it has yet to
// read what there is.
func (b *bench) restartWhileEdited(ctx context.Context, w *world, round int) error {
	if err := w.serveWebhooks(ctx); err != nil { // as another replica does meanwhile
		return err
	}
	defer w.quiet()
	user, err := newEditor(ctx, w, b.large)
	if err != nil {
		return err
	}
	o, err := w.startManager(b.ours.name)
	if err != nil {
		return err
	}
	if err := o.awaitReconciles(ctx, 1); err != nil {
		return err
	}
	loaded := time.Now()
	if err := o.awaitReconciles(ctx, b.large.machines); err != nil {
		return err
	}
	before, after, err := user.stop(ctx, loaded)
	if err != nil {
		return err
	}
	r := Record{Case: "start-edited", Contender: b.ours.name, Round: round, Values: map[string]float64{}}
	addWaits(r.Values, "before_loaded", before)
	addWaits(r.Values, "after_loaded", after)
	b.say("%s: users waited up to %.2fs while it read what there is, and %.3fs after that", b.large,
		r.Values["p99_before_loaded_seconds"], r.Values["p99_after_loaded_seconds"])
	return b.record(r)
}

// addWaits adds what is to be known of waits.
func addWaits(values map[string]float64, when string, waits []float64) {
	values["edits_"+when] = float64(len(waits))
	if len(waits) > 0 {
		values["p99_"+when+"_seconds"] = percentile(waits, 99)
	}
}

// joins starts other replicas beside an operator that leads, one after the other.
func (b *bench) joins(ctx context.Context, w *world) error {
	leader, err := w.startManager("leader", "--leader-elect")
	if err != nil {
		return err
	}
	defer leader.Kill()
	if err := leader.awaitReconciles(ctx, b.large.machines); err != nil {
		return err
	}
	for round := range b.rounds {
		if err := b.joinWhileEdited(ctx, w, round+1); err != nil {
			return err
		}
	}
	return nil
}

// joinWhileEdited starts another replica beside the operator that leads, as an upgrade does and as the operator is installed,
// and records how long users wait until the other one knows all that there is.
func (b *bench) joinWhileEdited(ctx context.Context, w *world, round int) error {
	user, err := newEditor(ctx, w, b.large)
	if err != nil {
		return err
	}
	start := time.Now()
	other, err := w.startManager(b.ours.name, "--leader-elect")
	if err != nil {
		return err
	}
	defer other.Kill()
	if err := other.awaitMetric(ctx, "workqueue_depth", prometheus.Labels{"controller": "machine"}, b.large.machines); err != nil {
		return err
	}
	r := Record{Case: "join-edited", Contender: b.ours.name, Round: round, Values: map[string]float64{"seconds": time.Since(start).Seconds()}}
	waits, _, err := user.stop(ctx, time.Now())
	if err != nil {
		return err
	}
	addWaits(r.Values, "meanwhile", waits)
	b.say("%s: users waited up to %.3fs while another replica started, for %.1fs", b.large, r.Values["p99_meanwhile_seconds"], r.Values["seconds"])
	return b.record(r)
}
