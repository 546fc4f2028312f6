// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// idle measures in the background what the operator does while nothing happens in its world.
func idle(ctx context.Context, b *bench) error {
	length := 10 * time.Minute
	if b.quick {
		length = 15 * time.Second
	}
	w, err := b.settle(ctx)
	if err != nil {
		return err
	}
	o, err := w.startManager(b.ours.name, "--webhooks")
	if err != nil {
		return err
	}
	if err := o.awaitReconciles(ctx, b.large.machines); err != nil {
		return err
	}
	// The API server has Machines converted for its cache as soon as somebody does that.
	if err := awaitQuiet(ctx, w); err != nil {
		return err
	}
	b.background.Go(func() error { return b.rest(ctx, o, length) })
	return nil
}

// rest records what the operator does for so long. The case is so many Machines with so many switches each, all at rest.
//
// Values:
//   - seconds
//   - writes, requests: of the operator, by its own account
//   - cpu_seconds, and cpu_ratio: its share of a core
func (b *bench) rest(ctx context.Context, o *operator, length time.Duration) error {
	record := Record{Experiment: "idle", Case: b.large.String(), Contender: b.ours.name, Round: 1}
	before, err := o.doings(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := pause(ctx, length); err != nil {
		return err
	}
	if record.Values, err = o.doings(ctx); err != nil {
		return err
	}
	for name := range before {
		record.Values[name] -= before[name]
	}
	record.Values["seconds"] = time.Since(start).Seconds()
	record.Values["cpu_ratio"] = record.Values["cpu_seconds"] / record.Values["seconds"]
	b.say("%s: %.0f writes and %.2f %% of a core at rest", record.Case, record.Values["writes"], 100*record.Values["cpu_ratio"])
	return b.record(record)
}

// doings are what the operator has done so far.
func (o *operator) doings(ctx context.Context) (values map[string]float64, err error) {
	values = map[string]float64{}
	if values["cpu_seconds"], err = cpuSeconds(o.Process); err != nil {
		return nil, err
	}
	if values["requests"], err = o.requests(ctx); err != nil {
		return nil, err
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		n, err := o.metric(ctx, "rest_client_requests_total", prometheus.Labels{"method": method})
		if err != nil {
			return nil, err
		}
		values["writes"] += n
	}
	return values, nil
}
