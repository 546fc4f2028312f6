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
	// A server that has failed is replaced after the first of these delays, which doubles with each failure that follows
	// up to the last.
	firstReplacement, lastReplacement = 10 * time.Second, 5 * time.Minute

	// forgiving is how long a server has to be ready before the failures of those before it are forgotten.
	forgiving = 5 * time.Minute
)

// A plan is what to do about a VirtualMachine. At most one of the first three is asked for.
type plan struct {
	create bool
	resize bool
	delete string    // why the server is deleted; empty for one that stays
	next   time.Time // when to look again, at the latest; zero for when something changes
}

// decide returns what to do about a VirtualMachine whose server is the given Pod, or none.
func decide(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, now time.Time) plan {
	failures, retry := failuresOf(vm, pod, now)
	switch {
	case pod == nil:
		return plan{create: isActive(vm)}
	case !pod.DeletionTimestamp.IsZero():
		return plan{} // it has to be gone before there can be another, and that wakes us
	case !isActive(vm):
		return plan{delete: "the virtual machine is inactive"}
	case !isLabelled(pod):
		return plan{delete: "it has lost its label"} // nothing else would be heard of it
	case retry != nil && !now.Before(retry.Time):
		return plan{delete: "it has failed"}
	case retry != nil:
		return plan{next: retry.Time}
	}
	p := plan{resize: !hasResources(pod, vm)}
	if since, ready := readySince(pod); ready && failures > 0 {
		p.next = since.Add(forgiving)
	}
	return p
}

// failuresOf returns how many servers of a VirtualMachine have failed one after the other, and when the one that has is
// replaced; nil if it has not. Both go into the status, which makes a new operator as patient as the one before. While
// it waits, the Pod stays to show what is wrong with it; whoever deletes it ends the wait.
func failuresOf(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, now time.Time) (int32, *metav1.Time) {
	known := vm.Status
	switch {
	case !isActive(vm):
		return 0, nil
	case pod == nil || !pod.DeletionTimestamp.IsZero():
		return known.Failures, nil
	case hasEnded(pod) && known.RetryTime != nil && known.Server != nil && known.Server.ID == pod.UID:
		return known.Failures, known.RetryTime // it is among them already
	case hasEnded(pod):
		failures := known.Failures + 1
		return failures, new(metav1.NewTime(now.Add(replacementDelay(failures))))
	}
	if since, ready := readySince(pod); ready && !now.Before(since.Add(forgiving)) {
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

// mayHaveServer reports whether a VirtualMachine of which the cache has no Pod may have one all the same: a cache can be
// late, and never has a Pod that has lost its label. One that is active and has none is not asked about, because to create
// it tells as much.
func mayHaveServer(vm *v1alpha1.VirtualMachine) bool {
	stopped := vm.Status.Phase == v1alpha1.PhaseStopped && vm.Status.ObservedGeneration == vm.Generation
	return !vm.DeletionTimestamp.IsZero() || vm.Status.Server != nil || !isActive(vm) && !stopped
}

func isActive(vm *v1alpha1.VirtualMachine) bool { return vm.Spec.Action != v1alpha1.ActionInactive }
