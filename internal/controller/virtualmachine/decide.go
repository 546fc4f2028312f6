// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/cloudnative/v1alpha1"
)

const (
	// firstReplacement is the delay before a failed Pod is replaced. It doubles with each failure, up to
	// lastReplacement.
	firstReplacement, lastReplacement = 10 * time.Second, 5 * time.Minute

	// stableAfter is how long a Pod must be ready before the controller forgets the failures of earlier Pods.
	stableAfter = 5 * time.Minute
)

// plan describes the next step for a VirtualMachine. At most one of create, resize, delete and removeFinalizer is set.
type plan struct {
	confirm         bool // read the VirtualMachine from the API server first
	create          bool
	resize          bool
	delete          string    // the cause of a deletion; empty for none
	removeFinalizer bool      // and do nothing else
	next            time.Time // when to decide again; zero means at the next event
}

// decide returns the plan for a VirtualMachine and its Pod, which may be nil. The argument fresh is true if vm comes
// from the API server, and not from the cache.
func decide(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, now time.Time, fresh bool) plan {
	failures, retry := failuresOf(vm, pod, now)
	switch {
	case pod == nil && !vm.DeletionTimestamp.IsZero():
		return plan{removeFinalizer: true}
	case pod == nil:
		return plan{create: isActive(vm), confirm: isActive(vm) && !fresh}
	case !pod.DeletionTimestamp.IsZero():
		return plan{} // the end of the Pod causes another reconcile
	case !vm.DeletionTimestamp.IsZero():
		return plan{delete: "the VirtualMachine is being deleted"}
	case !isActive(vm):
		return plan{delete: "the VirtualMachine is inactive", confirm: !fresh}
	case !isLabelled(pod):
		return plan{delete: "its label was removed"} // the cache does not contain the Pod any more
	case retry != nil && !now.Before(retry.Time):
		return plan{delete: "it has failed"}
	case retry != nil:
		return plan{next: retry.Time}
	}
	return plan{resize: !hasResources(pod, vm), next: whenStable(pod, failures)}
}

// whenStable returns the time at which the controller forgets the failures of earlier Pods. It returns zero if the Pod
// is not ready, or if there are no failures.
func whenStable(pod *corev1.Pod, failures int32) time.Time {
	if since, ready := readySince(pod); ready && failures > 0 {
		return since.Add(stableAfter)
	}
	return time.Time{}
}

// failuresOf returns the number of Pods that failed in a row, and the time at which the operator replaces the failed
// Pod. The time is nil if the Pod has not failed. Both values are in the status, so that a new leader continues with
// them. The failed Pod stays until its replacement, so that a user can find the cause. If a user deletes the failed
// Pod, the operator creates a new Pod immediately.
func failuresOf(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, now time.Time) (int32, *metav1.Time) {
	known := vm.Status
	switch {
	case !isActive(vm):
		return 0, nil
	case pod == nil || !pod.DeletionTimestamp.IsZero():
		return known.Failures, nil
	case hasEnded(pod) && known.RetryTime != nil && known.Server != nil && known.Server.ID == pod.UID:
		return known.Failures, known.RetryTime // this failure is already counted
	case hasEnded(pod):
		failures := known.Failures + 1
		return failures, new(metav1.NewTime(now.Add(replacementDelay(failures))))
	}
	if since, ready := readySince(pod); ready && !now.Before(since.Add(stableAfter)) {
		return 0, nil
	}
	return known.Failures, nil
}

func replacementDelay(failures int32) time.Duration {
	delay := firstReplacement
	for ; failures > 1 && delay < lastReplacement; failures-- {
		delay *= 2
	}
	return min(delay, lastReplacement)
}

// mayHavePod reports whether a VirtualMachine may have a Pod that the cache lacks. Such a Pod was just created, or its
// label was removed. For an active VirtualMachine without a known Pod, mayHavePod returns false: if there is a Pod, the
// attempt to create another Pod finds it.
func mayHavePod(vm *v1alpha1.VirtualMachine) bool {
	stopped := vm.Status.Phase == v1alpha1.PhaseStopped && vm.Status.ObservedGeneration == vm.Generation
	return !vm.DeletionTimestamp.IsZero() || vm.Status.Server != nil || !isActive(vm) && !stopped
}

func isActive(vm *v1alpha1.VirtualMachine) bool { return vm.Spec.Action != v1alpha1.ActionInactive }
