// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// big measures how the operator and kube-apiserver scale, from 1,000 to 300,000 Switches in up to 1,000 namespaces. The
// number of Machines grows in one environment. kube-apiserver serves only v1beta1: with both versions, it needs more
// than 20 GiB of memory for the last size. The last size is not part of a quick run.
//
// Values of a size, in addition to the values of restart:
//   - memory_limit_bytes: GOMEMLIMIT of the operator
//   - memory_bytes: the resident memory of the operator after the sweep
//   - apiserver_memory_bytes: the resident memory of kube-apiserver after the start
//   - etcd_bytes: the size of etcd's database
//   - sweep_seconds, sweep_cpu_seconds, sweep_received_bytes: the time of a sweep, and the operator's CPU time and
//     received bytes in it. In a sweep, a label of each Machine changes, and the operator reconciles each Machine once.
func big(ctx context.Context, b *bench) (err error) {
	sizes := []size{{100, 10}, {1_000, 10}, {3_000, 10}, {10_000, 10}, {30_000, 10}}
	if b.quick {
		sizes = sizes[:4]
	}
	e, err := newEnvironment(ctx, b.programs, b.ours)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	if err := e.stopV1alpha1(ctx); err != nil {
		return err
	}
	p, err := e.newPrototype(ctx, sizes[0].switches)
	if err != nil {
		return err
	}
	p.perNamespace = 30
	first := 1
	for _, s := range sizes {
		b.log("%s: preparing", s)
		if err := e.grow(ctx, p, first, s); err != nil {
			return err
		}
		if err := b.measureSize(ctx, e, p, s); err != nil {
			return err
		}
		first = s.machines
	}
	return printSizes(os.Stdout, b.records)
}

// grow adds the Machines from number first until the environment has the size. No operator runs meanwhile.
func (e *environment) grow(ctx context.Context, p *prototype, first int, s size) error {
	e.memoryLimit = installedLimit * max(1, s.total()/100_000) // the installed limit is for 100,000 Switches
	e.killProcesses()
	for i := first; i < s.machines; i++ {
		if i > first && p.namespace(i) == p.namespace(i-1) {
			continue
		}
		namespace := &corev1.Namespace{}
		namespace.Name = p.namespace(i)
		if err := client.IgnoreAlreadyExists(e.admin.Create(ctx, namespace)); err != nil {
			return err
		}
	}
	return errors.Join(e.multiply(ctx, p, first, s.machines), e.quiesce(ctx))
}

// measureSize measures a start and a sweep.
func (b *bench) measureSize(ctx context.Context, e *environment, p *prototype, s size) error {
	operator, r, err := b.restart(ctx, e, s)
	if err != nil {
		return err
	}
	values := r.Values
	if err := awaitQuiet(ctx, e); err != nil {
		return err
	}
	if values["apiserver_memory_bytes"], err = residentMemory(e.apiServer()); err != nil {
		return err
	}
	var etcd struct {
		Size float64 `json:"dbSize,string"`
	}
	if err := e.callEtcd(ctx, "maintenance/status", struct{}{}, &etcd); err != nil {
		return err
	}
	values["etcd_bytes"], values["memory_limit_bytes"] = etcd.Size, float64(e.memoryLimit)
	if err := e.sweep(ctx, p, s, operator, values); err != nil {
		return err
	}
	if err := awaitQuiet(ctx, e); err != nil {
		return err
	}
	if values["memory_bytes"], err = residentMemory(operator.Process); err != nil {
		return err
	}
	b.log("%s: a sweep took %.1fs", s, values["sweep_seconds"])
	r.Case, r.Round = s.String(), 1
	return b.record(r)
}

// sweep changes a label of each Machine and waits until the operator has reconciled them.
func (e *environment) sweep(
	ctx context.Context, p *prototype, s size, operator *process, values map[string]float64,
) error {
	done, err := operator.metric(ctx, "controller_runtime_reconcile_total", prometheus.Labels{"controller": "machine"})
	if err != nil {
		return err
	}
	before, beforeErr := cpuSeconds(operator.Process)
	received, err := operator.received()
	if err := errors.Join(beforeErr, err); err != nil {
		return err
	}
	start := time.Now()
	if err := e.touch(ctx, p, s.machines, s.String()); err != nil {
		return err
	}
	if err := operator.awaitReconciles(ctx, int(done)+s.machines-1); err != nil {
		return err
	}
	values["sweep_seconds"] = time.Since(start).Seconds()
	after, afterErr := cpuSeconds(operator.Process)
	values["sweep_cpu_seconds"] = after - before
	values["sweep_received_bytes"], err = operator.received()
	values["sweep_received_bytes"] -= received
	return errors.Join(afterErr, err)
}

// printSizes prints a table with a row for each size.
func printSizes(w io.Writer, records results) error {
	columns := []struct {
		title, key string
		format     func(float64) string
	}{
		{"start", "seconds", duration},
		{"caches", "cached_seconds", duration},
		{"CPU", "cpu_subject_seconds", duration},
		{"CPU of API server", "cpu_apiserver_seconds", duration},
		{"received", "received_bytes", byteSize},
		{"peak memory", "peak_bytes", byteSize},
		{"memory", "memory_bytes", byteSize},
		{"GOMEMLIMIT", "memory_limit_bytes", byteSize},
		{"memory of API server", "apiserver_memory_bytes", byteSize},
		{"etcd", "etcd_bytes", byteSize},
		{"sweep", "sweep_seconds", duration},
		{"CPU of sweep", "sweep_cpu_seconds", duration},
		{"received in sweep", "sweep_received_bytes", byteSize},
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "size\t")
	for _, column := range columns {
		fmt.Fprintf(table, "%s\t", column.title)
	}
	fmt.Fprintln(table)
	for _, record := range records {
		if record.Experiment != "big" {
			continue
		}
		fmt.Fprintf(table, "%s\t", withSizes(record.Case))
		for _, column := range columns {
			fmt.Fprintf(table, "%s\t", column.format(record.Values[column.key]))
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}
