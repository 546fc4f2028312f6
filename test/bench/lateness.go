// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// lateness measures how late flips are while independent users turn Switches up. A case is a size and a rate of flips.
// A flip is due when two times are over: the delay since the operator saw the Switch up, and the interval since the
// Machine's last flip. With a base, the two revisions take turns in rounds.
//
// Values of the flips that were due under full load:
//   - flips, flips_per_second
//   - lateness_p50_seconds, lateness_p99_seconds, lateness_max_seconds: from the due time to the watch event
//
// Values of all flips:
//   - early, crowded, doubled: wrong flips
//   - skipped: requests that were left out because no Machine was at rest
//   - users_late_p99_seconds: how late the users sent their requests
func lateness(ctx context.Context, b *bench) error {
	const warmup, length = 7 * time.Second, 20 * time.Second
	small, wide := size{1_000, 10}, size{10_000, 1}
	switch {
	case b.quick:
		return b.latenessAt(ctx, 2, load{small, 50, warmup, length / 2})
	case b.base != nil:
		return b.latenessAt(ctx, 8, load{small, 50, warmup, length})
	}
	return errors.Join(
		b.latenessAt(ctx, 1, load{small, 50, warmup, length}, load{small, 100, warmup, length}),
		b.latenessAt(ctx, 1, load{wide, 200, warmup, length}),
	)
}

// latenessAt measures the revisions in rounds. A round measures all loads, one after the other. All loads must have the
// same size.
func (b *bench) latenessAt(ctx context.Context, rounds int, loads ...load) error {
	return b.atRest(ctx, loads[0].size, rounds, func(e *environment, round int) error {
		for _, l := range loads {
			if err := l.measure(ctx, b, e, round); err != nil {
				return fmt.Errorf("%s: %s: %w", l, e.rev.name, err)
			}
		}
		return nil
	})
}

// A load is a rate of flips.
type load struct {
	size      size
	perSecond float64
	warmup    time.Duration // longer than the flip delay, because the first flip is due after this delay
	length    time.Duration // length of the measurement, which follows the warmup
}

func (l load) String() string { return fmt.Sprintf("%s, %g/s", l.size, l.perSecond) }

// measure records the lateness of an operator under the load. All Machines must be at rest before.
func (l load) measure(ctx context.Context, b *bench, e *environment, round int) error {
	u := newUsers(e, l.size)
	loaded, cancel := context.WithTimeout(ctx, l.warmup+l.length)
	defer cancel()
	start := time.Now()
	flips, err := u.run(ctx, loaded.Done(), l.perSecond)
	if err != nil {
		return err
	}
	values := map[string]float64{"skipped": float64(u.skipped), "users_late_p99_seconds": percentile(u.late, 99)}
	faults := u.addFaults(values, flips)
	if measured := l.due(flips, start); len(measured) > 0 {
		values["flips"] = float64(len(measured))
		values["flips_per_second"] = float64(len(measured)) / l.length.Seconds()
		addLateness(values, measured)
		b.log("%s: %s: %.0f flips/s, late by %.1f ms (p50), %.1f ms (p99)", l, e.rev.name, values["flips_per_second"],
			1e3*values["lateness_p50_seconds"], 1e3*values["lateness_p99_seconds"])
	}
	record := Record{Case: l.String(), Subject: e.rev.name, Round: round, Values: values}
	return errors.Join(b.record(record), faults)
}

// due returns the flips that were due after the warmup and before the end of the load.
func (l load) due(flips []flip, start time.Time) (measured []flip) {
	from := start.Add(l.warmup)
	for _, f := range flips {
		if since := f.Due.Sub(from); since >= 0 && since < l.length {
			measured = append(measured, f)
		}
	}
	return measured
}
