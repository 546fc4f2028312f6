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

// A summary is what a VirtualMachine is in one word, and why.
type summary struct {
	phase           v1alpha1.Phase
	reason, message string
}

// A verdict is whether a condition holds, and why.
type verdict struct {
	value           metav1.ConditionStatus
	reason, message string
}

// newStatus describes a VirtualMachine whose server is the given Pod, or none. It follows from what is there now; of the
// status before it keeps the instants of what has not changed since.
func newStatus(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, refused outcome, used usage, now time.Time) v1alpha1.VirtualMachineStatus {
	status := *vm.Status.DeepCopy()
	status.ObservedGeneration = vm.Generation
	status.Failures, status.RetryTime = failuresOf(vm, pod, now)

	sum := summarize(vm, pod, refused.creating)
	sum.message = sameRefusal(status, v1alpha1.ConditionReady, sum.reason, sum.message)
	status.Phase, status.Reason, status.Message = sum.phase, sum.reason, sum.message
	ready := sum.reason == v1alpha1.ReasonServerReady
	status.Server = newServer(status.Server, pod, ready, now)

	isReady := verdict{metav1.ConditionFalse, sum.reason, sum.message}
	if ready {
		isReady.value = metav1.ConditionTrue
	}
	isResizing := resizing(vm, pod, refused.resizing)
	isResizing.message = sameRefusal(status, v1alpha1.ConditionResizing, isResizing.reason, isResizing.message)
	set(&status, v1alpha1.ConditionReady, isReady, now)
	set(&status, v1alpha1.ConditionScheduled, scheduled(pod), now)
	set(&status, v1alpha1.ConditionResizing, isResizing, now)
	known := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionUsageAvailable)
	set(&status, v1alpha1.ConditionUsageAvailable, used.describe(status.Server, known), now)
	return status
}

// summarize says in what phase a VirtualMachine is: the first that fits. While it is being stopped, that is the one its
// server is in.
func summarize(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, refused error) summary {
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return summary{v1alpha1.PhaseTerminating, v1alpha1.ReasonTerminating, "The virtual machine is being deleted"}
	case pod == nil && !isActive(vm):
		return summary{v1alpha1.PhaseStopped, v1alpha1.ReasonStopped, "The virtual machine is inactive"}
	case !isActive(vm):
		return summary{ofServer(pod).phase, v1alpha1.ReasonStopping, "The virtual machine is inactive, and its server is going"}
	case errors.Is(refused, errNameConflict):
		return summary{v1alpha1.PhaseFailed, v1alpha1.ReasonNameConflict, refused.Error()}
	case pod == nil && apierror.IsQuotaExceeded(refused):
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonQuotaExceeded, refused.Error()}
	case pod == nil && refused != nil:
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonCreateFailed, refused.Error()}
	case pod == nil:
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonCreating, "The server is being created"}
	case !pod.DeletionTimestamp.IsZero():
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonReplacing, "A server is going, and another will replace it"}
	}
	return ofServer(pod)
}

// ofServer says in what phase a server is.
func ofServer(pod *corev1.Pod) summary {
	state := containerStatus(pod).State
	if hasEnded(pod) {
		return summary{
			v1alpha1.PhaseFailed, oneWord(pod.Status.Reason, v1alpha1.ReasonServerFailed),
			cmp.Or(events.Truncate(pod.Status.Message), "The server has ended"),
		}
	}
	// Whatever else a container waits for has gone wrong.
	if waiting := state.Waiting; waiting != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, waiting.Reason) {
		return summary{
			v1alpha1.PhaseFailed, oneWord(waiting.Reason, v1alpha1.ReasonServerFailed),
			cmp.Or(events.Truncate(waiting.Message), "The server does not start"),
		}
	}
	if _, ready := readySince(pod); ready {
		return summary{v1alpha1.PhaseActive, v1alpha1.ReasonServerReady, "The server runs and is ready"}
	}
	if condition := podCondition(pod, corev1.PodScheduled); condition != nil && condition.Reason == corev1.PodReasonUnschedulable {
		return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable, events.Truncate(condition.Message)}
	}
	return summary{v1alpha1.PhaseCreating, v1alpha1.ReasonStarting, "The server does not run and is not ready yet"}
}

// newServer describes a Pod. It keeps what is known of the same one.
func newServer(known *v1alpha1.ServerStatus, pod *corev1.Pod, ready bool, now time.Time) *v1alpha1.ServerStatus {
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

// scheduled is the condition Scheduled.
func scheduled(pod *corev1.Pod) verdict {
	if pod == nil {
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no server"}
	}
	if pod.Spec.NodeName != "" {
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonScheduled, "The server has node " + pod.Spec.NodeName}
	}
	if condition := podCondition(pod, corev1.PodScheduled); condition != nil {
		return verdict{metav1.ConditionFalse, oneWord(condition.Reason, v1alpha1.ReasonPending), events.Truncate(condition.Message)}
	}
	return verdict{metav1.ConditionUnknown, v1alpha1.ReasonPending, "The scheduler has not decided yet"}
}

// resizing is the condition Resizing.
func resizing(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, refused error) verdict {
	switch {
	case pod == nil:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonNoServer, "There is no server"}
	case refused != nil:
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonResizeRefused, refused.Error()}
	case !hasResources(pod, vm):
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonRequested, "The server has yet to be resized, or to be replaced by one with the resources"}
	}
	if pending := podCondition(pod, corev1.PodResizePending); pending != nil && pending.Status == corev1.ConditionTrue {
		return verdict{metav1.ConditionTrue, oneWord(pending.Reason, v1alpha1.ReasonRequested), events.Truncate(pending.Message)}
	}
	if progress := podCondition(pod, corev1.PodResizeInProgress); progress != nil && progress.Status == corev1.ConditionTrue {
		return verdict{metav1.ConditionTrue, oneWord(progress.Reason, v1alpha1.ReasonInProgress), events.Truncate(progress.Message)}
	}
	// Before the node has said anything, what it has applied differs all the same.
	server, applied := containerOf(pod), containerStatus(pod).Resources
	if server != nil && applied != nil && !same(server.Resources.Limits, applied.Limits) {
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonRequested, "The node has yet to look at the resources"}
	}
	return verdict{metav1.ConditionFalse, v1alpha1.ReasonUpToDate, "The server has the resources that were asked for"}
}

// sameRefusal is the message for what the API server refuses, as long as it does. Errors have numbers in them that differ
// every time: each would be a new status, and each new status a new try at once.
func sameRefusal(status v1alpha1.VirtualMachineStatus, conditionType, reason, message string) string {
	refusals := []string{
		v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonCreateFailed, v1alpha1.ReasonNameConflict, v1alpha1.ReasonResizeRefused,
	}
	before := meta.FindStatusCondition(status.Conditions, conditionType)
	if before != nil && before.Reason == reason && before.ObservedGeneration == status.ObservedGeneration && slices.Contains(refusals, reason) {
		return before.Message
	}
	return events.Truncate(message)
}

func set(status *v1alpha1.VirtualMachineStatus, conditionType string, is verdict, now time.Time) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: conditionType, Status: is.value, Reason: is.reason, Message: is.message,
		ObservedGeneration: status.ObservedGeneration, LastTransitionTime: metav1.NewTime(now),
	})
}

var conditionReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]{0,1000}[A-Za-z0-9_])?$`)

// oneWord is a Pod's reason for something if it can be a condition's, too.
func oneWord(reason, otherwise string) string {
	if conditionReason.MatchString(reason) {
		return reason
	}
	return otherwise
}
