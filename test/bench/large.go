// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// large measures the operator with the largest number of Machines. It measures restarts, and the activity at rest after
// the last restart. With a base, the two revisions take turns, with more restarts and fewer Machines. The activity at
// rest is then not measured.
func large(ctx context.Context, b *bench) error {
	rounds, rest := 5, 10*time.Minute
	if b.quick {
		rest = 15 * time.Second
	} else if b.base != nil {
		rounds = 15
	}
	return b.atRest(ctx, b.large(), rounds, func(e *environment, round int) error {
		e.killProcesses()
		p, err := b.restart(ctx, e, round)
		if err != nil || b.base != nil || round < rounds {
			return err
		}
		return errors.Join(awaitQuiet(ctx, e), b.rest(ctx, p, rest))
	})
}

// restart starts the operator with its webhooks and waits until it has reconciled every Machine.
//
// Values:
//   - seconds: from the start until the operator has reconciled all Machines
//   - peak_bytes: the maximum resident memory of the operator
//   - writes: the write requests of all clients for Machines, Switches and events
func (b *bench) restart(ctx context.Context, e *environment, round int) (*process, error) {
	before, err := e.writes(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	p, err := e.startManager(e.rev.name, "--webhooks")
	if err != nil {
		return nil, err
	}
	if err := p.awaitReconciles(ctx, b.large().machines); err != nil {
		return nil, err
	}
	values := map[string]float64{"seconds": time.Since(start).Seconds()}
	if values["peak_bytes"], err = peakMemory(p.Process); err != nil {
		return nil, err
	}
	after, err := e.writes(ctx)
	if err != nil {
		return nil, err
	}
	values["writes"] = after - before
	b.log("%s: a restart of %s took %.1fs, %.0f writes and at most %.0f MiB of memory", b.large(), e.rev.name,
		values["seconds"], values["writes"], values["peak_bytes"]/(1<<20))
	return p, b.record(Record{Case: "start", Subject: e.rev.name, Round: round, Values: values})
}

// rest records the operator's activity while nothing changes, as experiment "idle".
//
// Values:
//   - seconds: the length of the measurement
//   - writes, requests: from the operator's own metrics
//   - cpu_seconds: the CPU time of the operator
//   - cpu_ratio: the share of one core
func (b *bench) rest(ctx context.Context, p *process, length time.Duration) error {
	before, err := p.activity(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := pause(ctx, length); err != nil {
		return err
	}
	values, err := p.activity(ctx)
	if err != nil {
		return err
	}
	for name := range before {
		values[name] -= before[name]
	}
	values["seconds"] = time.Since(start).Seconds()
	values["cpu_ratio"] = values["cpu_seconds"] / values["seconds"]
	b.log("%s: at rest %.0f writes and %.2f %% of a core", b.large(), values["writes"], 100*values["cpu_ratio"])
	return b.record(Record{
		Experiment: "idle", Case: b.large().String(), Subject: b.ours.name, Round: 1, Values: values,
	})
}

// activity returns the operator's CPU time, requests and writes since its start.
func (p *process) activity(ctx context.Context) (values map[string]float64, err error) {
	values = map[string]float64{}
	if values["cpu_seconds"], err = cpuSeconds(p.Process); err != nil {
		return nil, err
	}
	if values["requests"], err = p.metric(ctx, "rest_client_requests_total", nil); err != nil {
		return nil, err
	}
	reads, err := p.metric(ctx, "rest_client_requests_total", prometheus.Labels{"method": http.MethodGet})
	values["writes"] = values["requests"] - reads
	return values, err
}
