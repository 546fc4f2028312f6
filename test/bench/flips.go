// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
)

const (
	fixedRate = 25.                    // flips per second before the ramp
	rampRate  = 35.                    // flips per second at the start of the ramp
	lateLimit = 100 * time.Millisecond // highest median of the lateness at the capacity
)

// measureFlips measures how late flips are while independent users turn Switches up. Each subject has its own
// environment. The subjects take turns; all others are suspended. A turn has a warmup, a fixed rate, and a ramp.
//
// The ramp raises the rate continuously until most of the last flips are late. The capacity is the highest rate at which
// at most half of the flips are late. With the p99 instead, one pause of the computer of 0.2 s would decide: at 50 flips
// per second, ten of 1,000 flips would be late.
//
// A flip is due when the delay is over. The delay begins when the user sends the request. With a base, there is no
// ramp, and the rounds are long enough for their own p99.
//
// Values of the case 25/s, in each round. They describe the flips and changes at the fixed rate:
//   - flips, flips_per_second
//   - changes: the number of changes of positions, two for each flip
//   - lateness_…_seconds: from the due time to the watch event
//   - staleness_…_seconds: from the watch event of a Switch to the watch event of a Machine with a correct status
//   - cpu_apiserver_seconds, cpu_subject_seconds, cpu_bench_seconds
//   - writes, writes_per_flip: the write requests of the subject; only for an operator
//
// Values of the case 25/s that describe the whole turn:
//   - early, crowded, doubled: wrong flips; only for an operator
//   - skipped: requests that were left out because no Machine was at rest
//   - users_late_…_seconds: how late the users sent their requests
//
// Values of the case 25/s for all rounds: lateness_…_seconds and staleness_…_seconds, with the number of samples.
//
// Values of the case ramp, in each round: flips and seconds, of the window of the capacity; and flips_per_second.
func measureFlips(ctx context.Context, b *bench) error {
	l := &load{
		bench: b, size: size{2_000, 1}, rounds: 5, warmup: 7 * time.Second, length: 9 * time.Second,
		ramp: 60 * time.Second, doubling: 15 * time.Second, late: map[string][]float64{}, stale: map[string][]float64{},
	}
	subjects := []subject{asInstalled(b.ours), b.client(minimalClient)}
	if b.base != nil {
		subjects[1] = asInstalled(b.base)
		l.rounds, l.length, l.ramp = 8, 41*time.Second, 0
	}
	if b.quick {
		l.size, l.rounds, l.length = size{600, 1}, 1, 4*time.Second
		l.ramp, l.doubling = min(l.ramp, 8*time.Second), 8*time.Second
	}
	return l.run(ctx, subjects)
}

// A load is a rate of flips.
type load struct {
	*bench

	size     size
	rounds   int
	warmup   time.Duration // longer than the flip delay, because the first flip is due after this delay
	length   time.Duration // length of the fixed rate, which follows the warmup
	ramp     time.Duration // maximum length of the ramp, which follows the fixed rate
	doubling time.Duration // time in which the rate of the ramp doubles

	// Seconds of all flips and changes at the fixed rate, by subject.
	late, stale map[string][]float64
}

// run measures subjects in turns.
func (l *load) run(ctx context.Context, subjects []subject) (err error) {
	runners, err := (&race{bench: l.bench, size: l.size, subjects: subjects}).prepareAll(ctx)
	defer func() {
		for _, runner := range runners {
			err = errors.Join(err, runner.env.stop())
		}
	}()
	if err != nil {
		return err
	}
	for _, runner := range runners {
		if err := runner.during(ctx, func() error { return runner.env.awaitConverged(ctx, l.size) }); err != nil {
			return fmt.Errorf("prepare %s: %w", runner.name, err)
		}
	}
	for round := 1; round <= l.rounds; round++ {
		for _, runner := range runners {
			if err := awaitQuiet(ctx, runner.env); err != nil {
				return err
			}
			if err := runner.during(ctx, func() error { return l.turn(ctx, runner, round) }); err != nil {
				return fmt.Errorf("measure %s: %w", runner.name, err)
			}
		}
		slices.Reverse(runners) // the order is A B, B A, A B, …
	}
	return l.recordAll(runners)
}

// recordAll records the flips and changes of all rounds.
func (l *load) recordAll(runners []*runner) error {
	for _, runner := range runners {
		all := Record{Case: fmt.Sprintf("%g/s", fixedRate), Subject: runner.name, Values: map[string]float64{}}
		addPercentiles(all.Values, "lateness", l.late[runner.name])
		addPercentiles(all.Values, "staleness", l.stale[runner.name])
		if err := l.record(all); err != nil {
			return err
		}
	}
	return nil
}

// rate returns the flips per second at a time since the start of the turn.
func (l *load) rate(since time.Duration) float64 {
	if ramp := since - l.warmup - l.length; ramp >= 0 {
		return rampRate * math.Exp2(ramp.Seconds()/l.doubling.Seconds())
	}
	return fixedRate
}

// turn measures a subject in one round. All Machines must be at rest before.
func (l *load) turn(ctx context.Context, runner *runner, round int) error {
	loaded, cancel := context.WithTimeout(ctx, l.warmup+l.length+l.ramp)
	defer cancel()
	u, start := newUsers(runner.env, l.size), time.Now()
	u.seed = uint64(round)
	u.onFlip = func(flips []flip) {
		if time.Since(start) > l.warmup+l.length && overloaded(flips) {
			cancel()
		}
	}
	var flips []flip
	var values map[string]float64
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		flips, err = u.follow(ctx, loaded.Done(), l.rate)
		return err
	})
	group.Go(func() (err error) {
		values, err = l.usage(ctx, runner)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	values["skipped"] = float64(u.skipped)
	addPercentiles(values, "users_late", u.late)
	var faults error
	if runner.process.metrics != "" { // the minimal client does not write the times that the checker needs
		faults = u.addFaults(values, flips)
	}
	from := start.Add(l.warmup)
	if err := l.recordFixed(runner, round, values, u.lags, flips, from); err != nil {
		return err
	}
	if l.ramp > 0 {
		return errors.Join(l.recordRamp(runner, round, flips, from), faults)
	}
	return faults
}

// during resumes or starts a runner, calls a function, and suspends the runner.
func (r *runner) during(ctx context.Context, do func() error) error {
	if err := r.resume(ctx); err != nil {
		return err
	}
	return errors.Join(do(), r.process.Signal(syscall.SIGSTOP))
}

// usage returns the resources that are used at the fixed rate.
func (l *load) usage(ctx context.Context, runner *runner) (values map[string]float64, err error) {
	if err := pause(ctx, l.warmup); err != nil {
		return nil, err
	}
	before, err := runner.usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, l.length); err != nil {
		return nil, err
	}
	values, err = runner.usage(ctx)
	subtract(values, before)
	return values, err
}

// usage returns the use of resources since the starts of the processes.
func (r *runner) usage(ctx context.Context) (map[string]float64, error) {
	values, err := r.env.usage(ctx, r.process)
	if err != nil {
		return nil, err
	}
	self, err := procfs.Self()
	if err != nil {
		return nil, err
	}
	stat, err := self.Stat()
	values["cpu_bench_seconds"] = stat.CPUTime()
	return values, err
}

// recordFixed records the flips that were due at the fixed rate, which began at a time.
func (l *load) recordFixed(
	runner *runner, round int, values map[string]float64, lags []lag, flips []flip, from time.Time,
) error {
	during := func(at time.Time) bool { return !at.Before(from) && at.Before(from.Add(l.length)) }
	var late, stale []float64
	for _, f := range flips {
		if during(f.Due) {
			late = append(late, f.late().Seconds())
		}
	}
	for _, lag := range lags {
		if during(lag.from) {
			stale = append(stale, lag.length.Seconds())
		}
	}
	values["flips"], values["flips_per_second"] = float64(len(late)), float64(len(late))/l.length.Seconds()
	values["changes"] = float64(len(stale))
	if writes, ok := values["writes"]; ok && len(stale) > 0 {
		values["writes_per_flip"] = 2 * writes / values["changes"]
	}
	addPercentiles(values, "lateness", late)
	addPercentiles(values, "staleness", stale)
	l.late[runner.name] = append(l.late[runner.name], late...)
	l.stale[runner.name] = append(l.stale[runner.name], stale...)
	perFlip := func(name string) float64 { return 1e3 * 2 * values[name] / values["changes"] }
	l.log("%g/s: round %d: %s: late by %.1f ms, stale by %.1f ms (p50); CPU time for a flip: kube-apiserver %.1f ms, "+
		"subject %.2f ms, benchmark %.2f ms", fixedRate, round, runner.name,
		1e3*values["lateness_p50_seconds"], 1e3*values["staleness_p50_seconds"],
		perFlip("cpu_apiserver_seconds"), perFlip("cpu_subject_seconds"), perFlip("cpu_bench_seconds"))
	return l.record(Record{
		Case: fmt.Sprintf("%g/s", fixedRate), Subject: runner.name, Round: round, Values: values,
	})
}

// recordRamp records the window of the capacity, among the flips that were due at the fixed rate or later.
func (l *load) recordRamp(runner *runner, round int, flips []flip, from time.Time) error {
	w := capacity(slices.DeleteFunc(slices.Clone(flips), func(f flip) bool { return f.Due.Before(from) }))
	if w == nil {
		return fmt.Errorf("%s was overloaded from the start of the ramp", runner.name)
	}
	seconds := spanOf(w).Seconds()
	values := map[string]float64{"flips": rateWindow, "seconds": seconds, "flips_per_second": rateWindow / seconds}
	addLateness(values, w[1:])
	l.log("ramp: round %d: %s: %.0f flips/s, late by %.1f ms (p50)", round, runner.name,
		values["flips_per_second"], 1e3*values["lateness_p50_seconds"])
	return l.record(Record{Case: "ramp", Subject: runner.name, Round: round, Values: values})
}

// rateWindow is the number of flips over which the rate of a ramp is measured.
const rateWindow = 200

// overloaded reports whether most of the last flips are later than lateLimit.
func overloaded(flips []flip) bool {
	return len(flips) > rateWindow && lateIn(flips[len(flips)-rateWindow:]) > rateWindow/2
}

// capacity returns the window with the highest rate among the windows that are not overloaded. The result begins with
// the flip before the window. It is nil if there is no such window.
func capacity(flips []flip) (fastest []flip) {
	for i := rateWindow; i < len(flips); i++ {
		w := flips[i-rateWindow : i+1]
		if lateIn(w[1:]) <= rateWindow/2 && (fastest == nil || spanOf(w) < spanOf(fastest)) {
			fastest = w
		}
	}
	return fastest
}

// lateIn returns the number of flips that are later than lateLimit.
func lateIn(flips []flip) (n int) {
	for _, f := range flips {
		if f.late() > lateLimit {
			n++
		}
	}
	return n
}

// spanOf returns the time in which the flips were due. With the times of the watch events, a burst of late flips would
// count as a high rate.
func spanOf(flips []flip) time.Duration { return flips[len(flips)-1].Due.Sub(flips[0].Due) }
