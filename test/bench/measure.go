// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"container.training/useless/hack/cluster"
)

// cpuSeconds is how long a process has run on a processor so far.
func cpuSeconds(p *cluster.Process) (float64, error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, err
	}
	stat, err := proc.Stat()
	return stat.CPUTime(), err
}

// halt stops a process, which goes on with SIGCONT, and waits until nothing of it runs.
func halt(ctx context.Context, p *cluster.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return cluster.Await(ctx, []*cluster.Process{p}, func(context.Context) error {
		proc, err := procfs.NewProc(p.PID())
		if err != nil {
			return err
		}
		stat, err := proc.Stat()
		if err == nil && stat.State != "T" {
			err = fmt.Errorf("%s is still running", p.Name())
		}
		return err
	})
}

// memory is how much a process has in memory, and the most it has had so far, in bytes.
func memory(p *cluster.Process) (resident, peak float64, err error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, 0, err
	}
	status, err := proc.NewStatus()
	return float64(status.VmRSS), float64(status.VmHWM), err
}

// calls are how many requests the API server has answered so far, by verb and resource, such as "PATCH machines/status".
// Those that only its own programs make, of leases for example, are among them.
func (w *world) calls(ctx context.Context) (map[string]float64, error) {
	families, err := w.metrics(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for _, metric := range families["apiserver_request_total"].GetMetric() {
		labels := labelsOf(metric)
		name := labels["verb"] + " " + labels["resource"]
		if sub := labels["subresource"]; sub != "" {
			name += "/" + sub
		}
		if code := labels["code"]; code >= "400" {
			name += " " + code
		}
		found[name] += metric.GetCounter().GetValue()
	}
	return found, nil
}

// metrics are what the API server says of itself.
func (w *world) metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	data, err := w.raw.Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	return parseMetrics(string(data))
}

// requests are how many requests a manager has made so far, by its own account.
func (o *operator) requests(ctx context.Context) (float64, error) {
	return o.metric(ctx, "rest_client_requests_total", nil)
}

// metric is the sum of a counter or gauge of the operator over all series that have the labels.
func (o *operator) metric(ctx context.Context, name string, labels prometheus.Labels) (float64, error) {
	data, err := fetch(ctx, o.metrics)
	if err != nil {
		return 0, err
	}
	families, err := parseMetrics(data)
	return sumOf(families[name], labels), err
}

// sumOf is the sum of a counter or gauge over all series that have the labels.
func sumOf(family *dto.MetricFamily, labels prometheus.Labels) (sum float64) {
	for _, metric := range family.GetMetric() {
		matches, has := true, labelsOf(metric)
		for key, value := range labels {
			matches = matches && has[key] == value
		}
		if matches {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return sum
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

// fetch gets what a server of this machine says.
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
