// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// lateness measures how late switches are turned down while independent users turn others up. A case is so many Machines
// with so many switches each, of which so many are turned up a second. Each flip is due when its switch has been noticed
// for the default delay, and its Machine's flip before it is the default interval ago.
//
// Values, of flips that were due while the load was full:
//   - flips, flips_per_second
//   - lateness_p50_seconds, lateness_p99_seconds, lateness_max_seconds: until the harness heard of it, which is a little
//     after it was written; lateness_at_least_…: until the operator was about to write it
//   - flips_within_0.005_seconds and so on: a histogram
//
// Of the whole run:
//   - early, crowded (less than the interval after another one of the Machine), doubled: flips that must not be
//   - skipped: turns left out because no Machine was at rest
//   - users_late_p99_seconds: how late the users were themselves
//   - cpu_…_seconds of run_seconds and run_flips
func lateness(ctx context.Context, b *bench) error {
	loads := []struct {
		size  size
		rates []float64
	}{
		{size{1_000, 10}, []float64{50, 100}},
		{size{10_000, 1}, []float64{200}},
	}
	if b.quick {
		loads, loads[0].rates = loads[:1], loads[0].rates[:1]
	}
	for _, l := range loads {
		for _, rev := range b.revisions() {
			if err := bear(ctx, b.as(rev), l.size, l.rates); err != nil {
				return fmt.Errorf("%s: %s: %w", l.size, rev.name, err)
			}
		}
	}
	return nil
}

// bear measures the operator at each of some rates at which users turn switches up, one after the other.
func bear(ctx context.Context, b *bench, s size, rates []float64) (err error) {
	w, err := b.resting(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	r := &runner{contender: asInstalled(b.ours), world: w}
	if r.process, err = r.start(w); err != nil {
		return err
	}
	if err := r.process.awaitReconciles(ctx, s.machines); err != nil {
		return err
	}
	for _, rate := range rates {
		if err := usualLoad(b).at(s, rate).measure(ctx, b, r); err != nil {
			return fmt.Errorf("%g/s: %w", rate, err)
		}
	}
	return nil
}

// A load is what the users of some Machines ask for.
type load struct {
	size      size
	perSecond float64
	warmup    time.Duration // until flips are measured; longer than the flip delay, as they keep coming for that long
	length    time.Duration // for which they are measured
}

// usualLoad says for how long loads are measured.
func usualLoad(b *bench) load {
	l := load{warmup: 7 * time.Second, length: 20 * time.Second}
	if b.quick {
		l.length = 10 * time.Second
	}
	return l
}

// at is the load of so many Machines, of which so many switches a second are turned up.
func (l load) at(s size, perSecond float64) load {
	l.size, l.perSecond = s, perSecond
	return l
}

func (l load) String() string { return fmt.Sprintf("%s, %g/s", l.size, l.perSecond) }

// measure records what the load makes of an operator whose Machines are at rest.
func (l load) measure(ctx context.Context, b *bench, r *runner) error {
	u := usersOf(r.world, l.size)
	record := Record{Experiment: "lateness", Case: l.String(), Contender: r.name, Values: map[string]float64{}}
	var flips []flip
	start := time.Now()
	err := r.spending(record.Values, func() (err error) {
		loaded, cancel := context.WithTimeout(ctx, l.warmup+l.length)
		defer cancel()
		flips, err = u.flips(ctx, loaded.Done(), poisson(1, l.perSecond))
		return err
	})
	if err != nil {
		return err
	}
	record.Values["run_seconds"], record.Values["run_flips"] = time.Since(start).Seconds(), float64(len(flips))
	record.Values["skipped"], record.Values["users_late_p99_seconds"] = float64(u.skipped), percentile(u.late, 99)
	faulty := addFaults(record.Values, flips)
	if measured := l.due(flips, start); len(measured) > 0 {
		record.Values["flips"] = float64(len(measured))
		record.Values["flips_per_second"] = float64(len(measured)) / l.length.Seconds()
		addLateness(record.Values, measured)
		addHistogram(record.Values, measured)
		b.say("%s: %.0f flips/s, late by %.1f ms (p50), %.1f ms (p99), %.1f ms (max)", l, record.Values["flips_per_second"],
			1e3*record.Values["lateness_p50_seconds"], 1e3*record.Values["lateness_p99_seconds"], 1e3*record.Values["lateness_max_seconds"])
	}
	return errors.Join(b.record(record), faulty)
}

// due are the flips that were due while the load was full.
func (l load) due(flips []flip, start time.Time) (measured []flip) {
	from := start.Add(l.warmup)
	for _, f := range flips {
		if since := f.Due.Sub(from); since >= 0 && since < l.length {
			measured = append(measured, f)
		}
	}
	return measured
}

// spending adds what the processes of the runner's world use for some work to the values.
func (r *runner) spending(values map[string]float64, work func() error) error {
	before, err := r.cpu()
	if err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	after, err := r.cpu()
	for name := range after {
		values["cpu_"+name+"_seconds"] = after[name] - before[name]
	}
	return err
}
