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

// failover measures how late flips are when the leader ends. Two replicas run with the leader election and the shutdown
// delay of config/manager. After the leader has ended, a new replica starts. A case is a size and the signal to the
// leader, SIGTERM or SIGKILL.
//
// Values of a round. They describe the flips between a signal and the next signal:
//   - flips, lateness_…: as in flips
//
// Values of all rounds. The case is only the size:
//   - flips, skipped, early, crowded, doubled: as in flips
func failover(ctx context.Context, b *bench) (err error) {
	s := size{500, 1}
	b.log("%s: preparing", s)
	f := &replicas{bench: b, size: s}
	if f.env, err = newEnvironment(ctx, b.programs, b.ours); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.env.stop()) }()
	if err := f.env.populate(ctx, s); err != nil {
		return err
	}
	if f.leader, err = f.add(ctx); err != nil {
		return err
	}
	if err := f.env.awaitConverged(ctx, s); err != nil {
		return err
	}
	u := newUsers(f.env, s)
	flips, err := f.endLeaders(ctx, u)
	if err != nil {
		return err
	}
	whole := Record{Case: s.String(), Subject: b.ours.name, Values: map[string]float64{
		"flips": float64(len(flips)), "skipped": float64(u.skipped),
	}}
	faults := u.addFaults(whole.Values, flips)
	return errors.Join(f.recordRounds(flips), b.record(whole), faults)
}

// replicas are operators with leader election.
type replicas struct {
	*bench

	env      *environment
	size     size
	leader   *process
	started  int
	failures []failure
}

// A failure is a signal to the leader.
type failure struct {
	signal string
	at     time.Time
}

// endLeaders ends one leader after the other while users turn up 20 Switches per second. It returns all flips.
func (f *replicas) endLeaders(ctx context.Context, u *users) (flips []flip, err error) {
	signals := slices.Repeat([]syscall.Signal{syscall.SIGTERM}, 5)
	signals = append(signals, syscall.SIGKILL, syscall.SIGKILL)
	if f.quick {
		signals = signals[:1]
	}
	until := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		flips, err = u.run(ctx, until, 20)
		return err
	})
	group.Go(func() error {
		defer close(until)
		for _, signal := range signals {
			if err := f.endLeader(ctx, signal); err != nil {
				return err
			}
		}
		return nil
	})
	err = group.Wait()
	return flips, err
}

// add starts a replica and waits until it is ready.
func (f *replicas) add(ctx context.Context) (*process, error) {
	f.started++
	name := fmt.Sprintf("%s-%d", f.ours.name, f.started)
	p, err := f.env.startManager(name, "--leader-elect", "--shutdown-delay=3s")
	if err != nil {
		return nil, err
	}
	return p, p.awaitReady(ctx)
}

// endLeader starts a second replica, sends a signal to the leader, and waits until the second replica leads.
func (f *replicas) endLeader(ctx context.Context, signal syscall.Signal) error {
	const calm = 6 * time.Second // longer than the flip delay
	standby, err := f.add(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	start := time.Now()
	f.failures = append(f.failures, failure{unix.SignalName(signal), start})
	if err := f.leader.Signal(signal); err != nil {
		return err
	}
	f.leader = standby
	err = cluster.Await(ctx, []*cluster.Process{standby.Process}, func(ctx context.Context) error {
		leads, err := standby.metric(ctx, "leader_election_master_status", nil)
		if err == nil && leads == 0 {
			err = errors.New("the second replica does not lead")
		}
		return err
	})
	f.log("%s: %s: the other replica leads after %.1fs", f.size, unix.SignalName(signal), time.Since(start).Seconds())
	return err
}

// recordRounds records the flips after each failure.
func (f *replicas) recordRounds(flips []flip) error {
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
			return fmt.Errorf("no flip after %s number %d", failure.signal, i+1)
		}
		rounds[failure.signal]++
		record := Record{
			Case: fmt.Sprintf("%s, %s", f.size, failure.signal), Subject: f.ours.name, Round: rounds[failure.signal],
			Values: map[string]float64{"flips": float64(len(after))},
		}
		addLateness(record.Values, after)
		f.log("%s: late by at most %.2fs", record.Case, record.Values["lateness_max_seconds"])
		if err := f.record(record); err != nil {
			return err
		}
	}
	return nil
}
