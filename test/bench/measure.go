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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
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

// memory returns the present and the maximum resident memory of a process, in bytes.
func memory(p *cluster.Process) (resident, peak float64, err error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, 0, err
	}
	status, err := proc.NewStatus()
	return float64(status.VmRSS), float64(status.VmHWM), err
}

// writes returns how many requests of all clients the API server has answered that are not reads. It counts only
// requests for objects that controllers of parents use.
func (e *environment) writes(ctx context.Context) (sum float64, err error) {
	data, err := e.raw.Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	families, err := parseMetrics(string(data))
	for _, metric := range families["apiserver_request_total"].GetMetric() {
		labels := labelsOf(metric)
		if slices.Contains([]string{"machines", "switches", "events"}, labels["resource"]) &&
			!slices.Contains([]string{"GET", "LIST", "WATCH"}, labels["verb"]) {
			sum += metric.GetCounter().GetValue()
		}
	}
	return sum, err
}

// metric returns the sum of a counter or gauge over all series with the labels.
func (p *process) metric(ctx context.Context, name string, labels prometheus.Labels) (sum float64, err error) {
	data, err := fetch(ctx, p.metrics)
	if err != nil {
		return 0, err
	}
	families, err := parseMetrics(data)
	for _, metric := range families[name].GetMetric() {
		matches, has := true, labelsOf(metric)
		for key, value := range labels {
			matches = matches && has[key] == value
		}
		if matches {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return sum, err
}

// awaitReconciles waits until the operator has reconciled Machines at least n times.
func (p *process) awaitReconciles(ctx context.Context, n int) error {
	for {
		done, err := p.metric(ctx, "controller_runtime_reconcile_total", prometheus.Labels{"controller": "machine"})
		if err == nil && done >= float64(n) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Done():
			return p.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func parseMetrics(text string) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(strings.NewReader(text))
}

func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range metric.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
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
