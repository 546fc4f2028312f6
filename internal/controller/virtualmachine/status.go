// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/events"
)

// newStatus returns the status of a VirtualMachine. The Pod may be nil. A condition keeps its transition time while its
// status is the same.
func newStatus(
	vm *v1alpha1.VirtualMachine, pod *corev1.Pod, done outcome, used usage, now time.Time,
) v1alpha1.VirtualMachineStatus {
	status := *vm.Status.DeepCopy()
	status.ObservedGeneration = vm.Generation
	status.Failures, status.RetryTime = failuresOf(vm, pod, now)
	set := func(conditionType string, c metav1.Condition) {
		c.Type, c.ObservedGeneration, c.LastTransitionTime = conditionType, vm.Generation, metav1.NewTime(now)
		c.Message = stableMessage(meta.FindStatusCondition(status.Conditions, conditionType), c)
		meta.SetStatusCondition(&status.Conditions, c)
	}

	phase, reason, message := summarize(vm, pod, done.createErr)
	ready := condition(metav1.ConditionFalse, reason, message)
	if reason == v1alpha1.ReasonServerReady {
		ready.Status = metav1.ConditionTrue
	}
	set(v1alpha1.ConditionReady, ready)
	status.Phase, status.Reason = phase, reason
	status.Message = meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady).Message
	status.Server = newServerStatus(status.Server, pod, reason == v1alpha1.ReasonServerReady, now)

	set(v1alpha1.ConditionScheduled, scheduled(pod))
	set(v1alpha1.ConditionResizing, resizing(vm, pod, done.resizeErr))
	known := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionUsageAvailable)
	set(v1alpha1.ConditionUsageAvailable, used.describe(status.Server, known))
	return status
}

// condition returns a condition without a type.
func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Status: status, Reason: reason, Message: message}
}

// summarize returns the phase of a VirtualMachine, with reason and message. While the Pod of an inactive VirtualMachine
// is being deleted, the phase comes from the Pod.
func summarize(
	vm *v1alpha1.VirtualMachine, pod *corev1.Pod, createErr error,
) (phase v1alpha1.Phase, reason, message string) {
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return v1alpha1.PhaseTerminating, v1alpha1.ReasonTerminating, "The VirtualMachine is being deleted"
	case pod == nil && !isActive(vm):
		return v1alpha1.PhaseStopped, v1alpha1.ReasonStopped, "The VirtualMachine is inactive"
	case !isActive(vm):
		phase, _, _ = summarizePod(pod)
		return phase, v1alpha1.ReasonStopping, "The VirtualMachine is inactive, and its Pod is being deleted"
	case errors.Is(createErr, errNameConflict):
		return v1alpha1.PhaseFailed, v1alpha1.ReasonNameConflict, createErr.Error()
	case pod == nil && apierror.IsQuotaExceeded(createErr):
		return v1alpha1.PhaseCreating, v1alpha1.ReasonQuotaExceeded, createErr.Error()
	case pod == nil && createErr != nil:
		return v1alpha1.PhaseCreating, v1alpha1.ReasonCreateFailed, createErr.Error()
	case pod == nil:
		return v1alpha1.PhaseCreating, v1alpha1.ReasonCreating, "The Pod is being created"
	case !pod.DeletionTimestamp.IsZero():
		return v1alpha1.PhaseCreating, v1alpha1.ReasonReplacing,
			"The Pod is being deleted, and a new Pod will replace it"
	}
	return summarizePod(pod)
}

// summarizePod returns the phase of a Pod, with reason and message.
func summarizePod(pod *corev1.Pod) (phase v1alpha1.Phase, reason, message string) {
	if hasEnded(pod) {
		return v1alpha1.PhaseFailed, conditionReason(pod.Status.Reason, v1alpha1.ReasonServerFailed),
			cmp.Or(pod.Status.Message, "The Pod has ended")
	}
	normal := []string{"", "ContainerCreating", "PodInitializing"} // all other reasons to wait are errors
	if waiting := containerStatus(pod).State.Waiting; waiting != nil && !slices.Contains(normal, waiting.Reason) {
		return v1alpha1.PhaseFailed, conditionReason(waiting.Reason, v1alpha1.ReasonServerFailed),
			cmp.Or(waiting.Message, "The container does not start")
	}
	if _, ready := readySince(pod); ready {
		return v1alpha1.PhaseActive, v1alpha1.ReasonServerReady, "The Pod is running and ready"
	}
	scheduling := podCondition(pod, corev1.PodScheduled)
	if scheduling != nil && scheduling.Reason == corev1.PodReasonUnschedulable {
		return v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable, scheduling.Message
	}
	return v1alpha1.PhaseCreating, v1alpha1.ReasonStarting, "The Pod is not ready yet"
}

// newServerStatus returns the status of a Pod, or nil if the Pod is nil. If known describes the same Pod, the result
// keeps the start time and the usage of known.
func newServerStatus(known *v1alpha1.ServerStatus, pod *corev1.Pod, ready bool, now time.Time) *v1alpha1.ServerStatus {
	if pod == nil {
		return nil
	}
	server := &v1alpha1.ServerStatus{}
	if known != nil && known.ID == pod.UID {
		server = known
	}
	server.ID, server.Name, server.Node = pod.UID, pod.Name, pod.Spec.NodeName
	server.State = v1alpha1.ServerWaiting
	switch state := containerStatus(pod).State; {
	case hasEnded(pod) || state.Terminated != nil:
		server.State = v1alpha1.ServerTerminated
	case state.Running != nil:
		server.State = v1alpha1.ServerRunning
	}
	if server.StartTime == nil && ready {
		server.StartTime = new(metav1.NewTime(now))
	}
	return server
}

// scheduled returns the condition Scheduled.
func scheduled(pod *corev1.Pod) metav1.Condition {
	if pod == nil {
		return condition(metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no Pod")
	}
	if pod.Spec.NodeName != "" {
		message := "The Pod is assigned to node " + pod.Spec.NodeName
		return condition(metav1.ConditionTrue, v1alpha1.ReasonScheduled, message)
	}
	if known := podCondition(pod, corev1.PodScheduled); known != nil {
		reason := conditionReason(known.Reason, v1alpha1.ReasonPending)
		return condition(metav1.ConditionFalse, reason, known.Message)
	}
	return condition(metav1.ConditionUnknown, v1alpha1.ReasonPending, "The scheduler has not assigned a node yet")
}

// resizing returns the condition Resizing.
func resizing(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, resizeErr error) metav1.Condition {
	switch {
	case pod == nil:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no Pod")
	case resizeErr != nil:
		return condition(metav1.ConditionTrue, v1alpha1.ReasonResizeRefused, resizeErr.Error())
	case !hasResources(pod, vm):
		return condition(metav1.ConditionTrue, v1alpha1.ReasonRequested, "The Pod was not resized or replaced yet")
	}
	for _, reported := range []struct {
		conditionType corev1.PodConditionType
		reason        string // the default if the condition has no valid reason
	}{{corev1.PodResizePending, v1alpha1.ReasonRequested}, {corev1.PodResizeInProgress, v1alpha1.ReasonInProgress}} {
		known := podCondition(pod, reported.conditionType)
		if known != nil && known.Status == corev1.ConditionTrue {
			return condition(metav1.ConditionTrue, conditionReason(known.Reason, reported.reason), known.Message)
		}
	}
	// The node may not have reported a condition yet. In this case, the applied resources differ from the resources in
	// the Pod's spec.
	main, applied := containerOf(pod), containerStatus(pod).Resources
	if main != nil && applied != nil && !same(main.Resources.Limits, applied.Limits) {
		return condition(metav1.ConditionTrue, v1alpha1.ReasonRequested, "The node has not processed the resize yet")
	}
	return condition(metav1.ConditionFalse, v1alpha1.ReasonUpToDate, "The Pod has the resources of the spec")
}

// stableMessage returns the message of a condition. While the API server rejects the same generation for the same
// reason, the first message stays. Later errors can contain different numbers. A new message would change the status,
// and each status change would cause an immediate retry.
func stableMessage(before *metav1.Condition, c metav1.Condition) string {
	rejections := []string{
		v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonCreateFailed, v1alpha1.ReasonNameConflict,
		v1alpha1.ReasonResizeRefused,
	}
	if before != nil && before.Reason == c.Reason && before.ObservedGeneration == c.ObservedGeneration &&
		slices.Contains(rejections, c.Reason) {
		return before.Message
	}
	return events.Truncate(c.Message)
}

var validReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]{0,1000}[A-Za-z0-9_])?$`)

// conditionReason returns the reason of a Pod if it is valid as the reason of a condition, and the fallback otherwise.
func conditionReason(reason, fallback string) string {
	if validReason.MatchString(reason) {
		return reason
	}
	return fallback
}

type metrics struct {
	creation    prometheus.Histogram
	pollSeconds prometheus.Histogram
	pollErrors  prometheus.Counter
}

// newMetrics registers the controller's metrics. Each scrape counts the VirtualMachines in the store.
func newMetrics(registerer prometheus.Registerer, machines toolscache.Store) *metrics {
	factory := promauto.With(registerer)
	// Each phase has a series that begins at 0, so that Prometheus sees the first increase.
	for _, phase := range []v1alpha1.Phase{
		v1alpha1.PhaseCreating, v1alpha1.PhaseActive, v1alpha1.PhaseFailed, v1alpha1.PhaseStopped,
		v1alpha1.PhaseTerminating,
	} {
		factory.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "useless_vm_phase",
			Help:        "Number of VirtualMachines by phase.",
			ConstLabels: prometheus.Labels{"phase": string(phase)},
		}, func() (n float64) {
			for _, object := range machines.List() {
				if object.(*v1alpha1.VirtualMachine).Status.Phase == phase {
					n++
				}
			}
			return n
		})
	}
	return &metrics{
		creation: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_vm_creation_to_active_seconds",
			Help:    "Time from the creation of a VirtualMachine's Pod until the operator first observed it ready.",
			Buckets: []float64{.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600},
		}),
		pollSeconds: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_vm_usage_poll_seconds",
			Help:    "Duration of one request for the usage of all VirtualMachines.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		pollErrors: factory.NewCounter(prometheus.CounterOpts{
			Name: "useless_vm_usage_errors_total",
			Help: "Number of failed requests for the usage of VirtualMachines.",
		}),
	}
}
