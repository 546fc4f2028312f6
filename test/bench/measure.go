// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"container.training/useless/hack/cluster"
)

// cpuSeconds returns the CPU time that a process has used.
func cpuSeconds(p *cluster.Process) (float64, error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, err
	}
	stat, err := proc.Stat()
	return stat.CPUTime(), err
}

// peakMemory returns the maximum resident memory of a process, in bytes.
func peakMemory(p *cluster.Process) (float64, error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, err
	}
	status, err := proc.NewStatus()
	return float64(status.VmHWM), err
}

// apiServer returns the process of kube-apiserver.
func (e *environment) apiServer() *cluster.Process {
	all := e.plane.Processes()
	return all[slices.IndexFunc(all, func(p *cluster.Process) bool { return p.Name() == "kube-apiserver" })]
}

// usage returns the CPU time of a program and of its API server, and the write requests of an operator, since the start
// of the processes.
func (e *environment) usage(ctx context.Context, p *process) (values map[string]float64, err error) {
	values = map[string]float64{}
	if values["cpu_subject_seconds"], err = cpuSeconds(p.Process); err != nil {
		return nil, err
	}
	if values["cpu_apiserver_seconds"], err = cpuSeconds(e.apiServer()); err != nil || p.metrics == "" {
		return values, err
	}
	requests, err := p.metric(ctx, "rest_client_requests_total", nil)
	if err != nil {
		return nil, err
	}
	reads, err := p.metric(ctx, "rest_client_requests_total", prometheus.Labels{"method": http.MethodGet})
	values["writes"] = requests - reads
	return values, err
}

// subtract subtracts earlier values.
func subtract(values, before map[string]float64) {
	for name := range before {
		values[name] -= before[name]
	}
}

// residentMemory returns the resident memory of a process, in bytes.
func residentMemory(p *cluster.Process) (float64, error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, err
	}
	stat, err := proc.Stat()
	return float64(stat.ResidentMemory()), err
}

// writes returns the number of write requests for the resources that the API server has answered, from all clients.
func (e *environment) writes(ctx context.Context, resources ...string) (sum float64, err error) {
	data, err := e.raw.Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	return sumOf(string(data), "apiserver_request_total", func(labels prometheus.Labels) bool {
		return slices.Contains(resources, labels["resource"]) &&
			!slices.Contains([]string{"GET", "LIST", "WATCH"}, labels["verb"])
	})
}

// metric returns the sum of a counter or gauge over all series with the labels.
func (p *process) metric(ctx context.Context, name string, labels prometheus.Labels) (sum float64, err error) {
	data, err := fetch(ctx, p.metrics)
	if err != nil {
		return 0, err
	}
	return sumOf(data, name, func(has prometheus.Labels) bool {
		for key, value := range labels {
			if has[key] != value {
				return false
			}
		}
		return true
	})
}

// awaitReconciles waits until the operator has reconciled Machines at least n times.
func (p *process) awaitReconciles(ctx context.Context, n int) error {
	return cluster.Await(ctx, []*cluster.Process{p.Process}, func(ctx context.Context) error {
		done, err := p.metric(ctx, "controller_runtime_reconcile_total", prometheus.Labels{"controller": "machine"})
		if err == nil && done < float64(n) {
			err = fmt.Errorf("it has reconciled %.0f Machines", done)
		}
		return err
	})
}

// sumOf returns the sum of a counter or gauge in a response over all series with matching labels.
func sumOf(text, name string, matches func(prometheus.Labels) bool) (sum float64, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	for _, metric := range families[name].GetMetric() {
		labels := prometheus.Labels{}
		for _, pair := range metric.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		if matches(labels) {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return sum, err
}

// fetch returns the body of an HTTP response. A status other than 200 is an error.
func fetch(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	err = errors.Join(err, response.Body.Close())
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return string(body), err
}
