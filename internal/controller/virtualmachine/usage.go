// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/cloudnative/v1alpha1"
)

const (
	// unavailableFactor multiplies the interval while the metrics API is not available.
	unavailableFactor = 10

	// toleratedFailures is the number of failed requests in a row that do not remove the shown usage. The metrics API
	// does not answer for a while when its Pod is replaced.
	toleratedFailures = 2

	// pollTimeout bounds one request to the metrics API.
	pollTimeout = 30 * time.Second
)

// usage is the known usage of a Pod.
type usage struct {
	asked     bool // this process has sent a request to the metrics API
	available bool // the metrics API has answered
	sample    *v1alpha1.UsageStatus
}

// describe sets the usage in a ServerStatus, which may be nil, and returns the condition UsageAvailable. Before its
// first request to the metrics API, a process keeps the usage and the condition that the previous process wrote.
func (u usage) describe(server *v1alpha1.ServerStatus, before *metav1.Condition) verdict {
	if server == nil || server.State != v1alpha1.ServerRunning {
		if server != nil {
			server.Usage = nil
		}
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no running Pod"}
	}
	if u.asked {
		server.Usage = u.sample
	}
	switch {
	case u.asked && !u.available:
		return verdict{
			metav1.ConditionUnknown, v1alpha1.ReasonMetricsAPIUnavailable, "The API metrics.k8s.io is not available",
		}
	case !u.asked && server.Usage == nil && before != nil && before.Status == metav1.ConditionUnknown:
		return verdict{before.Status, before.Reason, before.Message}
	case server.Usage == nil:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNotMeasured, "The usage was not measured yet"}
	}
	return verdict{metav1.ConditionTrue, v1alpha1.ReasonMeasured, "The usage is known"}
}

// poller reads the usage of all Pods from the metrics API, in one request, and wakes the VirtualMachines whose usage
// has changed.
type poller struct {
	list     func(ctx context.Context) (*metricsv1beta1.PodMetricsList, error)
	synced   func(ctx context.Context) bool
	pods     toolscache.Store
	interval time.Duration
	clock    clock.PassiveClock
	log      logr.Logger
	metrics  *metrics
	wake     chan event.TypedGenericEvent[client.ObjectKey]

	failures int // in a row

	mu        sync.Mutex
	asked     bool
	available bool
	samples   map[client.ObjectKey]sample // by VirtualMachine
}

// sample is the usage of a Pod.
type sample struct {
	pod types.UID
	v1alpha1.UsageStatus
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*poller) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (p *poller) Start(ctx context.Context) error {
	if !p.synced(ctx) {
		return nil
	}
	for {
		delay := p.interval
		if len(p.pods.ListKeys()) > 0 {
			delay = p.poll(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// poll sends one request, and returns the delay before the next one.
func (p *poller) poll(ctx context.Context) time.Duration {
	start := p.clock.Now()
	limited, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	answer, err := p.list(limited)
	p.metrics.pollSeconds.Observe(p.clock.Since(start).Seconds())
	if ctx.Err() != nil {
		return p.interval
	}
	samples, next := map[client.ObjectKey]sample{}, p.interval
	if err == nil {
		p.failures = 0
		samples = p.read(answer)
	} else {
		p.failures++
		p.metrics.pollErrors.Inc()
		if !apierrors.IsNotFound(err) && p.failures <= toleratedFailures {
			return next // keeps the last usage
		}
		next *= unavailableFactor
	}
	for _, vm := range p.replace(samples, err) {
		select {
		case p.wake <- event.TypedGenericEvent[client.ObjectKey]{Object: vm}:
		case <-ctx.Done():
		}
	}
	return next
}

// replace replaces the samples, and returns the VirtualMachines whose usage or condition changes. With an error, the
// metrics API is not available.
func (p *poller) replace(samples map[client.ObjectKey]sample, err error) []client.ObjectKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	available := err == nil
	switched := !p.asked || p.available != available
	if switched && !available {
		p.log.Info("The metrics API is not available: usage is not shown", "error", err.Error())
	}
	changed := map[client.ObjectKey]bool{}
	if switched {
		for _, pod := range p.pods.List() {
			if vm, ok := ownerOfName(pod.(*corev1.Pod)); ok {
				changed[vm] = true
			}
		}
	}
	for _, each := range []map[client.ObjectKey]sample{p.samples, samples} {
		for vm := range each {
			before, was := p.samples[vm]
			after, is := samples[vm]
			if was != is || before != after {
				changed[vm] = true
			}
		}
	}
	p.asked, p.available, p.samples = true, available, samples
	return slices.Collect(maps.Keys(changed))
}

// of returns the usage of a VirtualMachine's Pod, which may be nil.
func (p *poller) of(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := usage{asked: p.asked, available: p.available}
	if sample, ok := p.samples[client.ObjectKeyFromObject(vm)]; ok && pod != nil && sample.pod == pod.UID {
		known.sample = &sample.UsageStatus
	}
	return known
}

// read converts an answer to percent of the Pods' limits.
func (p *poller) read(answer *metricsv1beta1.PodMetricsList) map[client.ObjectKey]sample {
	samples := map[client.ObjectKey]sample{}
	for i := range answer.Items {
		item := &answer.Items[i]
		cached, exists, err := p.pods.GetByKey(client.ObjectKeyFromObject(item).String())
		vm, named := ownerOfName(item)
		if err != nil || !exists || !named {
			continue
		}
		pod := cached.(*corev1.Pod)
		if used, ok := measure(item, pod); ok {
			samples[vm] = sample{pod.UID, used}
		}
	}
	return samples
}

// measure returns the usage of a Pod. A measurement older than the container belongs to an earlier container of that
// name.
func measure(item *metricsv1beta1.PodMetrics, pod *corev1.Pod) (v1alpha1.UsageStatus, bool) {
	main, running := containerOf(pod), containerStatus(pod).State.Running
	if main == nil || running == nil || item.Timestamp.Time.Before(running.StartedAt.Time) {
		return v1alpha1.UsageStatus{}, false
	}
	for _, container := range item.Containers {
		if container.Name == containerName {
			return v1alpha1.UsageStatus{
				CPU:    percent(container.Usage.Cpu(), main.Resources.Limits.Cpu()),
				Memory: percent(container.Usage.Memory(), main.Resources.Limits.Memory()),
			}, true
		}
	}
	return v1alpha1.UsageStatus{}, false
}

// percent returns part in percent of whole, rounded, and at least 0.
func percent(part, whole *resource.Quantity) int32 {
	total := whole.AsApproximateFloat64()
	if total <= 0 {
		return 0
	}
	return int32(min(max(math.Round(100*part.AsApproximateFloat64()/total), 0), math.MaxInt32))
}
