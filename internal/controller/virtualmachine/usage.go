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
	// patienceFactor is how many intervals pass before a metrics API that was not there is looked for again.
	patienceFactor = 10

	// tolerated is how many requests in a row may fail before a metrics API that exists is taken to be gone: it does not
	// answer for a while whenever its server is replaced.
	tolerated = 2

	// pollTimeout is how long the metrics API may take to answer.
	pollTimeout = 30 * time.Second
)

// usage is what is known of what a server uses.
type usage struct {
	asked     bool // whether this process has asked the metrics API yet
	available bool // whether that answered
	sample    *v1alpha1.UsageStatus
}

// describe sets the usage of a server, if there is one, and returns whether it is known. Until the metrics API was asked
// that is what another process has found, whose condition is given if there is one.
func (u usage) describe(server *v1alpha1.ServerStatus, before *metav1.Condition) verdict {
	if server == nil || server.State != v1alpha1.ServerRunning {
		if server != nil {
			server.Usage = nil
		}
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNoServer, "No server runs"}
	}
	if u.asked {
		server.Usage = u.sample
	}
	switch {
	case u.asked && !u.available:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonMetricsAPIUnavailable, "The cluster does not serve metrics.k8s.io at present"}
	case !u.asked && server.Usage == nil && before != nil && before.Status == metav1.ConditionUnknown:
		return verdict{before.Status, before.Reason, before.Message}
	case server.Usage == nil:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNotMeasured, "The server's usage was not measured yet"}
	}
	return verdict{metav1.ConditionTrue, v1alpha1.ReasonMeasured, "The server's usage was measured"}
}

// A poller asks the metrics API for what all servers use, in one request, and wakes the VirtualMachines of those that
// use more or less than before.
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

// A sample is what a Pod uses.
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

// poll asks once, and returns when to ask again.
func (p *poller) poll(ctx context.Context) time.Duration {
	start := p.clock.Now()
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	answer, err := p.list(asking)
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
		if !apierrors.IsNotFound(err) && p.failures <= tolerated {
			return next // what is known is good enough
		}
		next *= patienceFactor
	}
	for _, vm := range p.keep(samples, err) {
		select {
		case p.wake <- event.TypedGenericEvent[client.ObjectKey]{Object: vm}:
		case <-ctx.Done():
		}
	}
	return next
}

// keep replaces what is known, and returns the VirtualMachines of which something else is known now.
func (p *poller) keep(samples map[client.ObjectKey]sample, problem error) []client.ObjectKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	available := problem == nil
	turned := !p.asked || p.available != available
	if turned && !available {
		p.log.Info("Usage is not known: the metrics API does not answer", "problem", problem.Error())
	}
	changed := map[client.ObjectKey]bool{}
	if turned {
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

// of returns what is known of a VirtualMachine whose server is the given Pod, or none.
func (p *poller) of(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := usage{asked: p.asked, available: p.available}
	if sample, ok := p.samples[client.ObjectKeyFromObject(vm)]; ok && pod != nil && sample.pod == pod.UID {
		known.sample = &sample.UsageStatus
	}
	return known
}

// read puts an answer in percent of the servers' limits.
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

// measure returns what a Pod uses. A measurement from before its container started is of another one of its name.
func measure(item *metricsv1beta1.PodMetrics, pod *corev1.Pod) (v1alpha1.UsageStatus, bool) {
	server, running := containerOf(pod), containerStatus(pod).State.Running
	if server == nil || running == nil || item.Timestamp.Time.Before(running.StartedAt.Time) {
		return v1alpha1.UsageStatus{}, false
	}
	for _, container := range item.Containers {
		if container.Name == containerName {
			return v1alpha1.UsageStatus{
				CPU:    percent(container.Usage.Cpu(), server.Resources.Limits.Cpu()),
				Memory: percent(container.Usage.Memory(), server.Resources.Limits.Memory()),
			}, true
		}
	}
	return v1alpha1.UsageStatus{}, false
}

// percent is a part of a whole, rounded. Less than nothing is nothing.
func percent(part, whole *resource.Quantity) int32 {
	of := whole.AsApproximateFloat64()
	if of <= 0 {
		return 0
	}
	return int32(min(max(math.Round(100*part.AsApproximateFloat64()/of), 0), math.MaxInt32))
}
