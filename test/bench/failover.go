// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"container.training/useless/hack/cluster"
)

// failover measures how late flips are when the leader ends. The leader election and the shutdown delay are the same as
// in config/manager. A case is a size and what happens to the leader:
//   - SIGTERM, SIGKILL: the leader receives the signal, and a second replica takes over.
//   - crash: the leader is the only replica and receives SIGKILL. It starts again at once in the same Pod.
//
// Values of a round. They describe the flips that happened after the end of a leader and before the next end:
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
	if f.leader, err = f.startPod(ctx); err != nil {
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
	pod      types.UID // of the replica that was started last
	started  int       // number of started processes
	leader   *process
	failures []failure
	lastLate atomic.Int64 // Unix time in nanoseconds of the last flip that was more than lateAfterFailure late
}

// A failure is the end of a leader.
type failure struct {
	cause string
	at    time.Time
}

// crash is the cause of a failure without a second replica. The other causes are names of signals.
const crash = "crash"

// lateAfterFailure is the lateness of a flip that a failure has delayed. Other flips are rarely this late.
const lateAfterFailure = time.Second

// endLeaders ends one leader after the other while users turn up 20 Switches per second. It returns all flips.
func (f *replicas) endLeaders(ctx context.Context, u *users) (flips []flip, err error) {
	causes := slices.Repeat([]string{"SIGTERM", crash, "SIGKILL"}, 5)
	if f.quick {
		causes = causes[:1]
	}
	u.onFlip = func(flips []flip) {
		if last := flips[len(flips)-1]; last.late() > lateAfterFailure {
			f.lastLate.Store(last.heard.UnixNano())
		}
	}
	until := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		flips, err = u.run(ctx, until, 20)
		return err
	})
	group.Go(func() error {
		defer close(until)
		for _, cause := range causes {
			if err := f.endLeader(ctx, cause); err != nil {
				return fmt.Errorf("%s: %w", cause, err)
			}
		}
		return nil
	})
	err = group.Wait()
	return flips, err
}

// startPod starts a replica in a new Pod, and waits until it is ready.
func (f *replicas) startPod(ctx context.Context) (*process, error) {
	f.pod = uuid.NewUUID()
	p, err := f.startContainer()
	if err != nil {
		return nil, err
	}
	return p, p.awaitReady(ctx)
}

// startContainer starts a process in the last Pod.
func (f *replicas) startContainer() (*process, error) {
	f.started++
	name := fmt.Sprintf("%s-%d", f.ours.name, f.started)
	return f.env.startManager(name, "--leader-elect", "--shutdown-delay=3s", "--pod-uid="+string(f.pod))
}

// endLeader ends the leader, and waits until another process leads.
func (f *replicas) endLeader(ctx context.Context, cause string) (err error) {
	previous := time.Now()
	var next *process
	if cause != crash {
		if next, err = f.startPod(ctx); err != nil {
			return err
		}
	}
	if err := f.awaitPunctual(ctx, previous); err != nil {
		return err
	}
	start := time.Now()
	f.failures = append(f.failures, failure{cause, start})
	if cause == "SIGTERM" {
		err = f.leader.Signal(syscall.SIGTERM)
	} else {
		f.leader.Kill()
	}
	if cause == crash {
		next, err = f.startContainer()
	}
	if err != nil {
		return err
	}
	f.leader = next
	err = cluster.Await(ctx, []*cluster.Process{next.Process}, func(ctx context.Context) error {
		leads, err := next.metric(ctx, "leader_election_master_status", nil)
		if err == nil && leads == 0 {
			err = errors.New("the next process does not lead")
		}
		return err
	})
	f.log("%s: %s: the next process leads after %.1fs", f.size, cause, time.Since(start).Seconds())
	return err
}

// awaitPunctual waits until the previous leader's end delays no more flips. The new leader notices some Switches at its
// start, and turns them down after the flip delay.
func (f *replicas) awaitPunctual(ctx context.Context, previous time.Time) error {
	const calm = flipDelay + time.Second
	for {
		last := time.Unix(0, f.lastLate.Load())
		if last.Before(previous) {
			last = previous
		}
		left := calm - time.Since(last)
		if left <= 0 {
			return nil
		}
		if err := pause(ctx, left); err != nil {
			return err
		}
	}
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
			if flip.heard.After(failure.at) && flip.heard.Before(end) {
				after = append(after, flip)
			}
		}
		if len(after) == 0 {
			return fmt.Errorf("no flip after %s number %d", failure.cause, i+1)
		}
		rounds[failure.cause]++
		record := Record{
			Case: fmt.Sprintf("%s, %s", f.size, failure.cause), Subject: f.ours.name, Round: rounds[failure.cause],
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
