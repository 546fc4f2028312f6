// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/informer"
)

const (
	// unavailableFactor multiplies the interval while the metrics API is not available.
	unavailableFactor = 10

	// toleratedFailures is the maximum number of failed requests in a row for which the status still shows the last
	// usage. The metrics API does not answer for a while when its Pod is replaced. NotFound is never tolerated: it
	// means that the metrics API is not installed.
	toleratedFailures = 2

	// pollTimeout bounds one request to the metrics API.
	pollTimeout = 30 * time.Second
)

// usage is the known usage of a Pod.
type usage struct {
	isKnown   bool                  // this process knows whether the metrics API is available
	available bool                  // the metrics API has answered
	sample    *v1alpha1.UsageStatus // nil if the Pod was not measured
}

// describe sets the usage in a ServerStatus, which may be nil, and returns the condition UsageAvailable. After a
// restart, it keeps the previous usage and condition until the operator knows whether the metrics API is available.
func (u usage) describe(server *v1alpha1.ServerStatus, before *metav1.Condition) metav1.Condition {
	if server == nil || server.State != v1alpha1.ServerRunning {
		if server != nil {
			server.Usage = nil
		}
		return condition(metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no running Pod")
	}
	if u.isKnown {
		server.Usage = u.sample
	}
	switch {
	case u.isKnown && !u.available:
		return condition(metav1.ConditionUnknown, v1alpha1.ReasonMetricsAPIUnavailable,
			"The API metrics.k8s.io is not available")
	case !u.isKnown && server.Usage == nil && before != nil && before.Status == metav1.ConditionUnknown:
		return *before
	case server.Usage == nil:
		return condition(metav1.ConditionUnknown, v1alpha1.ReasonNotMeasured, "The usage was not measured yet")
	}
	return condition(metav1.ConditionTrue, v1alpha1.ReasonMeasured, "The usage is known")
}

// poller reads the usage of the Pods of all VirtualMachines from the metrics API, in one request. Then it wakes the
// controller for each VirtualMachine whose usage has changed.
type poller struct {
	list     func(context.Context, metav1.ListOptions) (*metricsv1beta1.PodMetricsList, error)
	pods     toolscache.Store
	interval time.Duration
	clock    clock.PassiveClock
	log      logr.Logger
	metrics  *metrics
	wake     chan event.TypedGenericEvent[*corev1.Pod]

	failures int                     // the number of failed requests in a row
	last     atomic.Pointer[samples] // nil until a request shows whether the metrics API is available
}

// samples are the usages of all Pods.
type samples struct {
	available bool // the metrics API has answered
	byPod     map[types.UID]*v1alpha1.UsageStatus
}

// newPoller returns a poller for the Pods in a cache.
func newPoller(
	ctx context.Context, mgr ctrl.Manager, podCache cache.Cache, interval time.Duration, clock clock.PassiveClock,
	metrics *metrics,
) (*poller, error) {
	pods, storeErr := informer.Store(ctx, podCache, &corev1.Pod{}, nil)
	api, apiErr := metricsclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err := errors.Join(storeErr, apiErr); err != nil {
		return nil, err
	}
	return &poller{
		list:     api.MetricsV1beta1().PodMetricses(metav1.NamespaceAll).List,
		pods:     pods,
		interval: interval,
		clock:    clock,
		log:      mgr.GetLogger().WithName(Name),
		metrics:  metrics,
		wake:     make(chan event.TypedGenericEvent[*corev1.Pod]),
	}, nil
}

// Start implements manager.Runnable. It runs on the leader only.
func (p *poller) Start(ctx context.Context) error {
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
	answer, err := p.list(limited, metav1.ListOptions{LabelSelector: v1alpha1.VirtualMachineLabel})
	p.metrics.pollSeconds.Observe(p.clock.Since(start).Seconds())
	if ctx.Err() != nil {
		return p.interval
	}
	next := p.interval
	if err == nil {
		p.failures = 0
	} else {
		p.failures++
		p.metrics.pollErrors.Inc()
		if !apierrors.IsNotFound(err) && p.failures <= toleratedFailures {
			return next // keeps the last usage
		}
		answer = &metricsv1beta1.PodMetricsList{}
		next *= unavailableFactor
	}
	for _, pod := range p.replace(answer.Items, err) {
		select {
		case p.wake <- event.TypedGenericEvent[*corev1.Pod]{Object: pod}:
		case <-ctx.Done():
		}
	}
	return next
}

// replace replaces the samples, and returns the Pods whose usage or condition changes. An error means that the metrics
// API is not available.
func (p *poller) replace(items []metricsv1beta1.PodMetrics, err error) (changed []*corev1.Pod) {
	measured := map[client.ObjectKey]*metricsv1beta1.PodMetrics{}
	for i := range items {
		measured[client.ObjectKeyFromObject(&items[i])] = &items[i]
	}
	before, after := p.last.Load(), &samples{err == nil, map[types.UID]*v1alpha1.UsageStatus{}}
	switched := before == nil || before.available != after.available
	if switched && err != nil {
		p.log.Info("The metrics API is not available: usage is not shown", "error", err.Error())
	}
	for _, cached := range p.pods.List() {
		pod := cached.(*corev1.Pod)
		used := measure(measured[client.ObjectKeyFromObject(pod)], pod)
		if switched || !ptr.Equal(before.byPod[pod.UID], used) {
			changed = append(changed, pod)
		}
		after.byPod[pod.UID] = used
	}
	p.last.Store(after)
	return changed
}

// of returns the usage of a Pod. The Pod may be nil.
func (p *poller) of(pod *corev1.Pod) usage {
	last := p.last.Load()
	if last == nil {
		return usage{}
	}
	known := usage{isKnown: true, available: last.available}
	if pod != nil {
		known.sample = last.byPod[pod.UID]
	}
	return known
}

// measure returns the usage of a Pod in percent of its limits, or nil without a measurement. It ignores a measurement
// that is older than the container, because it belongs to an earlier container of the same name.
func measure(item *metricsv1beta1.PodMetrics, pod *corev1.Pod) *v1alpha1.UsageStatus {
	main, running := containerOf(pod), containerStatus(pod).State.Running
	if item == nil || main == nil || running == nil || item.Timestamp.Time.Before(running.StartedAt.Time) {
		return nil
	}
	for _, container := range item.Containers {
		if container.Name == containerName {
			return &v1alpha1.UsageStatus{
				CPU:    percent(container.Usage.Cpu(), main.Resources.Limits.Cpu()),
				Memory: percent(container.Usage.Memory(), main.Resources.Limits.Memory()),
			}
		}
	}
	return nil
}

// percent returns part in percent of whole, rounded, and at least 0.
func percent(part, whole *resource.Quantity) int32 {
	total := whole.AsApproximateFloat64()
	if total <= 0 {
		return 0
	}
	return int32(min(max(math.Round(100*part.AsApproximateFloat64()/total), 0), math.MaxInt32))
}
