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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/bench/baseline"
)

// herd measures how fast switches are turned down that are all due at once, by the operator and by the bare loop, each in a
// world of its own. The harness has written what an operator would have that noticed all of them at the same instant. A case
// is so many Machines with one switch each.
//
// Values of a round, in which each contender has an equal part of the flips to do, by turns:
//   - seconds, flips, cpu_…_seconds
//
// Values of the whole:
//   - seconds, flips
//   - lateness_to_fifo_ratio: the largest lateness, to what it would have been if the same had been done in the order in
//     which it was due
//   - early, crowded, doubled: flips that must not be
func herd(ctx context.Context, b *bench) (err error) {
	if b.stampede == nil {
		if err := prepareHerd(ctx, b); err != nil {
			return err
		}
	}
	h := b.stampede
	defer func() { err = errors.Join(err, h.stop()) }()
	ctx, cancel := context.WithCancel(ctx) // the watches end before their worlds
	defer cancel()
	for _, d := range h.drainers {
		if err := h.begin(ctx, d); err != nil {
			return fmt.Errorf("start %s: %w", d.name, err)
		}
	}
	for round := range h.turns {
		for _, d := range h.drainers {
			if err := h.turn(ctx, d, round+1); err != nil {
				return fmt.Errorf("measure %s: %w", d.name, err)
			}
		}
		slices.Reverse(h.drainers) // A B, B A, A B, …
	}
	for _, d := range h.drainers {
		if err := h.sum(d); err != nil {
			return err
		}
	}
	return nil
}

// prepareHerd makes the worlds in which all switches are up and noticed.
func prepareHerd(ctx context.Context, b *bench) error {
	h := &stampede{bench: b, size: size{10_000, 1}, turns: 20}
	if b.quick {
		h.size.machines = 1_000
	}
	b.say("%s: preparing", h.size)
	b.stampede = h // also if it is half prepared: it is to be stopped
	for _, c := range []contender{asInstalled(b.ours), fromBaseline("bare+informer", b.concurrency, "flip")} {
		var options worldOptions
		if len(h.drainers) > 0 {
			options.state = h.drainers[0].world.copied
		}
		w, err := newWorld(ctx, b.programs, b.ours, options)
		if err != nil {
			return err
		}
		h.drainers = append(h.drainers, &drainer{runner: &runner{contender: c, world: w}})
		if options.state != "" {
			continue
		}
		seen := time.Now()
		if err := errors.Join(w.raise(ctx, nameOf(0), seen), w.multiply(ctx, h.size.machines), w.copyState(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// A stampede is one size of the experiment.
type stampede struct {
	*bench
	size     size
	turns    int // of each contender
	drainers []*drainer
}

// stop ends its worlds.
func (h *stampede) stop() (err error) {
	for _, d := range h.drainers {
		err = errors.Join(err, d.world.stop())
	}
	h.drainers = nil
	return err
}

// A drainer is a contender that has switches to turn down.
type drainer struct {
	*runner
	heard  <-chan flip
	flips  []flip        // so far; when they were heard of does not count the times in which the contender was stopped
	began  time.Time     // the first round
	worked time.Duration // in the rounds before
}

// raise makes a Machine with a switch that the operator has noticed to be up.
func (w *world) raise(ctx context.Context, name string, seen time.Time) error {
	m := machines.parent(name, 1).(*v1beta1.Machine)
	m.Finalizers = []string{v1beta1.MachineFinalizer}
	if err := w.admin.Create(ctx, m); err != nil {
		return err
	}
	sw := baseline.NewSwitch(m, name+"-0")
	sw.Spec.Position = v1beta1.PositionUp
	if err := w.admin.Create(ctx, sw); err != nil {
		return err
	}
	at := new(metav1.NewMicroTime(seen))
	sw.Status = v1beta1.SwitchStatus{ObservedGeneration: sw.Generation, SeenAt: at}
	m.Status = baseline.ConvergedStatus(m, seen)
	m.Status.Switches, m.Status.Positions, m.Status.SeenAt = v1beta1.SwitchCounts{Total: 1, Up: 1}, "u", at
	for kind, message := range map[string]string{v1beta1.ConditionResting: "1 of 1 switches are up", v1beta1.ConditionReady: "Switches are up"} {
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonSwitchesUp, Message: message, ObservedGeneration: m.Generation,
		})
	}
	return errors.Join(w.admin.Status().Update(ctx, sw), w.admin.Status().Update(ctx, m))
}

// begin has a contender turn the first switch down, with which its start is over.
func (h *stampede) begin(ctx context.Context, d *drainer) (err error) {
	if d.heard, err = d.world.follow(ctx); err != nil {
		return err
	}
	if d.process, err = d.start(d.world); err != nil {
		return err
	}
	if err := d.hear(ctx, 1, time.Now); err != nil {
		return err
	}
	return d.process.Signal(syscall.SIGSTOP)
}

// hear waits until there are so many flips.
func (d *drainer) hear(ctx context.Context, n int, now func() time.Time) error {
	for len(d.flips) < n {
		select {
		case f, ok := <-d.heard:
			if !ok {
				return errors.Join(errWatchEnded, ctx.Err())
			}
			f.heard = now()
			d.flips = append(d.flips, f)
		case <-time.After(patience):
			return errNoFlip
		}
	}
	return nil
}

// turn lets a contender work for a round.
func (h *stampede) turn(ctx context.Context, d *drainer, round int) error {
	if d.began.IsZero() {
		d.began = time.Now()
	}
	// What was under way when it was stopped.
	if err := d.hear(ctx, len(d.flips)+len(d.heard), func() time.Time { return d.began.Add(d.worked) }); err != nil {
		return err
	}
	from, start := len(d.flips), time.Now()
	target := min(h.size.total(), from+h.size.total()/h.turns)
	if from == target {
		return nil
	}
	record := Record{Case: h.size.String(), Contender: d.name, Round: round, Values: map[string]float64{}}
	err := d.spending(record.Values, func() error {
		start = time.Now()
		if err := d.process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		if err := d.hear(ctx, target, func() time.Time { return d.began.Add(d.worked + time.Since(start)) }); err != nil {
			return err
		}
		record.Values["seconds"] = time.Since(start).Seconds()
		d.worked += time.Since(start)
		return d.process.Signal(syscall.SIGSTOP)
	})
	record.Values["flips"] = float64(len(d.flips) - from)
	h.say("%s: round %d: %s: %.0f flips in %.1fs, %.0f/s", h.size, round, d.name, record.Values["flips"],
		record.Values["seconds"], record.Values["flips"]/record.Values["seconds"])
	return errors.Join(err, h.record(record))
}

// sum records what can only be said of the whole.
func (h *stampede) sum(d *drainer) error {
	record := Record{Case: h.size.String(), Contender: d.name, Values: map[string]float64{
		"seconds": d.worked.Seconds(), "flips": float64(len(d.flips)), "lateness_to_fifo_ratio": toFIFO(d.flips),
	}}
	faulty := addFaults(record.Values, d.flips)
	return errors.Join(h.record(record), faulty)
}

// toFIFO is the largest lateness to what it would have been if flips had been done at the same instants, but in the order
// in which they were due.
func toFIFO(flips []flip) float64 {
	due, heard := make([]time.Time, 0, len(flips)), make([]time.Time, 0, len(flips))
	var most, fifo time.Duration
	for _, f := range flips {
		most = max(most, f.heard.Sub(f.Due))
		due, heard = append(due, f.Due), append(heard, f.heard)
	}
	slices.SortFunc(due, time.Time.Compare)
	slices.SortFunc(heard, time.Time.Compare)
	for i := range due {
		fifo = max(fifo, heard[i].Sub(due[i]))
	}
	return most.Seconds() / fifo.Seconds()
}
