// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/events"
)

// summary has the phase, the reason and the message of a status.
type summary struct {
	phase           v1alpha1.Phase
	reason, message string
}

// verdict has the status, the reason and the message of a condition.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

// newStatus returns the status of a VirtualMachine. Its Pod may be nil. If a part of the previous status has not
// changed, its time stays the same.
func newStatus(
	vm *v1alpha1.VirtualMachine, pod *corev1.Pod, done outcome, used usage, now time.Time,
) v1alpha1.VirtualMachineStatus {
	status := *vm.Status.DeepCopy()
	status.ObservedGeneration = vm.Generation
	status.Failures, status.RetryTime = failuresOf(vm, pod, now)

	sum := summarize(vm, pod, done.createErr)
	sum.message = stableMessage(status, v1alpha1.ConditionReady, sum.reason, sum.message)
	status.Phase, status.Reason, status.Message = sum.phase, sum.reason, sum.message
	ready := sum.reason == v1alpha1.ReasonServerReady
	status.Server = newServerStatus(status.Server, pod, ready, now)

	isReady := verdict{metav1.ConditionFalse, sum.reason, sum.message}
	if ready {
		isReady.status = metav1.ConditionTrue
	}
	isResizing := resizing(vm, pod, done.resizeErr)
	isResizing.message = stableMessage(status, v1alpha1.ConditionResizing, isResizing.reason, isResizing.message)
	set(&status, v1alpha1.ConditionReady, isReady, now)
	set(&status, v1alpha1.ConditionScheduled, scheduled(pod), now)
	set(&status, v1alpha1.ConditionResizing, isResizing, now)
	known := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionUsageAvailable)
	set(&status, v1alpha1.ConditionUsageAvailable, used.describe(status.Server, known), now)
	return status
}

// summarize returns the phase of a VirtualMachine, with reason and message. While the Pod is being stopped, the phase
// is that of the Pod.
func summarize(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, createErr error) summary {
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return summary{v1alpha1.PhaseTerminating, v1alpha1.ReasonTerminating, "The VirtualMachine is being deleted"}
	case pod == nil && !isActive(vm):
		return summary{v1alpha1.PhaseStopped, v1alpha1.ReasonStopped, "The VirtualMachine is inactive"}
	case !isActive(vm):
		return summary{
			summarizePod(pod).phase, v1alpha1.ReasonStopping, "The VirtualMachine is inactive, and its Pod is being deleted",
		}
	case errors.Is(createErr, errNameConflict):
		return summary{v1alpha1.PhaseFailed, v1alpha1.ReasonNameConflict, createErr.Error()}
	case pod == nil && apierror.IsQuotaExceeded(createErr):
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonQuotaExceeded, createErr.Error()}
	case pod == nil && createErr != nil:
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonCreateFailed, createErr.Error()}
	case pod == nil:
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonCreating, "The Pod is being created"}
	case !pod.DeletionTimestamp.IsZero():
		return summary{
			v1alpha1.PhaseCreating, v1alpha1.ReasonReplacing, "The Pod is being deleted, and a new Pod will replace it",
		}
	}
	return summarizePod(pod)
}

// summarizePod returns the phase of a Pod, with reason and message.
func summarizePod(pod *corev1.Pod) summary {
	state := containerStatus(pod).State
	if hasEnded(pod) {
		return summary{
			v1alpha1.PhaseFailed, conditionReason(pod.Status.Reason, v1alpha1.ReasonServerFailed),
			cmp.Or(events.Truncate(pod.Status.Message), "The Pod has ended"),
		}
	}
	normal := []string{"", "ContainerCreating", "PodInitializing"} // all other reasons to wait are errors
	if waiting := state.Waiting; waiting != nil && !slices.Contains(normal, waiting.Reason) {
		return summary{
			v1alpha1.PhaseFailed, conditionReason(waiting.Reason, v1alpha1.ReasonServerFailed),
			cmp.Or(events.Truncate(waiting.Message), "The container does not start"),
		}
	}
	if _, ready := readySince(pod); ready {
		return summary{v1alpha1.PhaseActive, v1alpha1.ReasonServerReady, "The Pod is running and ready"}
	}
	condition := podCondition(pod, corev1.PodScheduled)
	if condition != nil && condition.Reason == corev1.PodReasonUnschedulable {
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable, events.Truncate(condition.Message)}
	}
	return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonStarting, "The Pod is not ready yet"}
}

// newServerStatus returns the status of a Pod, or nil if the Pod is nil. If known describes the same Pod, it keeps the
// start time and the usage.
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
func scheduled(pod *corev1.Pod) verdict {
	if pod == nil {
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no Pod"}
	}
	if pod.Spec.NodeName != "" {
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonScheduled, "The Pod is assigned to node " + pod.Spec.NodeName}
	}
	if condition := podCondition(pod, corev1.PodScheduled); condition != nil {
		reason := conditionReason(condition.Reason, v1alpha1.ReasonPending)
		return verdict{metav1.ConditionFalse, reason, events.Truncate(condition.Message)}
	}
	return verdict{metav1.ConditionUnknown, v1alpha1.ReasonPending, "The scheduler has not assigned a node yet"}
}

// resizing returns the condition Resizing.
func resizing(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, resizeErr error) verdict {
	switch {
	case pod == nil:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no Pod"}
	case resizeErr != nil:
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonResizeRefused, resizeErr.Error()}
	case !hasResources(pod, vm):
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonRequested, "The Pod was not resized or replaced yet"}
	}
	for _, reported := range []struct {
		conditionType corev1.PodConditionType
		reason        string // the default if the condition has no valid reason
	}{{corev1.PodResizePending, v1alpha1.ReasonRequested}, {corev1.PodResizeInProgress, v1alpha1.ReasonInProgress}} {
		condition := podCondition(pod, reported.conditionType)
		if condition != nil && condition.Status == corev1.ConditionTrue {
			reason := conditionReason(condition.Reason, reported.reason)
			return verdict{metav1.ConditionTrue, reason, events.Truncate(condition.Message)}
		}
	}
	// The node may not have reported a condition yet. Then the applied resources differ from those of the Pod's spec.
	main, applied := containerOf(pod), containerStatus(pod).Resources
	if main != nil && applied != nil && !same(main.Resources.Limits, applied.Limits) {
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonRequested, "The node has not processed the resize yet"}
	}
	return verdict{metav1.ConditionFalse, v1alpha1.ReasonUpToDate, "The Pod has the resources of the spec"}
}

// stableMessage returns the message of a condition. While the API server rejects the same generation for the same
// reason, it keeps the first message. Errors contain numbers that differ each time, and each status change would cause
// an immediate retry.
func stableMessage(status v1alpha1.VirtualMachineStatus, conditionType, reason, message string) string {
	rejections := []string{
		v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonCreateFailed, v1alpha1.ReasonNameConflict, v1alpha1.ReasonResizeRefused,
	}
	before := meta.FindStatusCondition(status.Conditions, conditionType)
	if before != nil && before.Reason == reason && before.ObservedGeneration == status.ObservedGeneration &&
		slices.Contains(rejections, reason) {
		return before.Message
	}
	return events.Truncate(message)
}

func set(status *v1alpha1.VirtualMachineStatus, conditionType string, v verdict, now time.Time) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: conditionType, Status: v.status, Reason: v.reason, Message: v.message,
		ObservedGeneration: status.ObservedGeneration, LastTransitionTime: metav1.NewTime(now),
	})
}

var validReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]{0,1000}[A-Za-z0-9_])?$`)

// conditionReason returns the reason of a Pod if it is valid as the reason of a condition, and the fallback otherwise.
func conditionReason(reason, fallback string) string {
	if validReason.MatchString(reason) {
		return reason
	}
	return fallback
}
