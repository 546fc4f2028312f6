// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"container.training/useless/hack/cluster"
)

// failover measures how late switches are turned down when the leader goes. Two replicas run with the flags of
// config/manager, among them --leader-elect and --shutdown-delay=3s; whenever the leader ends, another one is started. A
// case is so many Machines with so many switches each, of which one is turned up every 50 ms, and what the leader gets:
// SIGTERM or SIGKILL.
//
// Values of a round, of flips that were heard of between the signal and the next one, also if they were due before:
//   - flips, lateness_p50_seconds, lateness_p99_seconds, lateness_max_seconds, and lateness_at_least_…: as for lateness
//
// Values of the whole, which is without a signal:
//   - flips, skipped, early, crowded, doubled: as for lateness
func failover(ctx context.Context, b *bench) (err error) {
	f := &failing{bench: b, size: size{500, 1}, every: 50 * time.Millisecond, calm: 6 * time.Second}
	signals := slices.Concat(slices.Repeat([]syscall.Signal{syscall.SIGTERM}, 5), slices.Repeat([]syscall.Signal{syscall.SIGKILL}, 2))
	if b.quick {
		signals = signals[:1]
	}
	b.say("%s: preparing", f.size)
	if f.world, err = newWorld(ctx, b.programs, b.ours, worldOptions{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.world.stop()) }()
	if err := f.world.populate(ctx, machines, f.size.machines, f.size.switches); err != nil {
		return err
	}
	if f.leader, err = f.replica(ctx); err != nil {
		return err
	}
	if err := f.world.awaitConverged(ctx, machines); err != nil {
		return err
	}

	u := usersOf(f.world, f.size)
	var flips []flip
	until := make(chan struct{})
	group, running := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		flips, err = u.flips(running, until, evenly(f.every))
		return err
	})
	group.Go(func() error {
		defer close(until)
		for _, signal := range signals {
			if err := f.fail(running, signal); err != nil {
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	whole := Record{Case: f.size.String(), Contender: b.ours.name, Values: map[string]float64{
		"flips": float64(len(flips)), "skipped": float64(u.skipped),
	}}
	faulty := addFaults(whole.Values, flips)
	return errors.Join(f.sum(flips), b.record(whole), faulty)
}

// A failing operator loses its leader again and again.
type failing struct {
	*bench
	world    *world
	size     size
	every    time.Duration // one switch is turned up
	calm     time.Duration // before a failure; longer than the flip delay
	leader   *operator
	replicas int
	failures []failure
}

// A failure is a signal to the leader.
type failure struct {
	name string // of the signal
	at   time.Time
}

// replica starts one more, and waits until it is ready.
func (f *failing) replica(ctx context.Context) (*operator, error) {
	f.replicas++
	o, err := f.world.startManager(fmt.Sprintf("%s-%d", f.ours.name, f.replicas), "--leader-elect", "--shutdown-delay=3s")
	if err != nil {
		return nil, err
	}
	return o, o.await(ctx)
}

// fail sends the leader a signal after a while, and waits until another one leads.
func (f *failing) fail(ctx context.Context, signal syscall.Signal) error {
	standby, err := f.replica(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, f.calm); err != nil {
		return err
	}
	f.failures = append(f.failures, failure{unix.SignalName(signal), time.Now()})
	if err := f.leader.Signal(signal); err != nil {
		return err
	}
	f.leader = standby
	err = cluster.Await(ctx, []*cluster.Process{standby.Process}, func(ctx context.Context) error {
		leads, err := standby.metric(ctx, "leader_election_master_status", nil)
		if err == nil && leads == 0 {
			err = errors.New("it does not lead")
		}
		return err
	})
	f.say("%s: %s: another one leads after %.1fs", f.size, unix.SignalName(signal), time.Since(f.failures[len(f.failures)-1].at).Seconds())
	return err
}

// pause waits, unless the context ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// sum records what came of each failure.
func (f *failing) sum(flips []flip) error {
	rounds := map[string]int{}
	for i, failure := range f.failures {
		end := time.Now()
		if i+1 < len(f.failures) {
			end = f.failures[i+1].at
		}
		var after []flip
		for _, flip := range flips {
			if !flip.heard.Before(failure.at) && flip.heard.Before(end) {
				after = append(after, flip)
			}
		}
		if len(after) == 0 {
			return fmt.Errorf("nothing was turned down after %s number %d", failure.name, i+1)
		}
		rounds[failure.name]++
		record := Record{Case: fmt.Sprintf("%s, %s", f.size, failure.name), Contender: f.ours.name, Round: rounds[failure.name]}
		record.Values = map[string]float64{"flips": float64(len(after))}
		addLateness(record.Values, after)
		f.say("%s: late by at most %.2fs", record.Case, record.Values["lateness_max_seconds"])
		if err := f.record(record); err != nil {
			return err
		}
	}
	return nil
}
