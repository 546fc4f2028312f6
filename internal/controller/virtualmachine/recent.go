// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/object"
)

// recent remembers what this process has written, or has asked for after a refusal, until its caches show it, so that a cache
// that lags behind costs no second request, nor a second event. Forgetting it, as a restart does, is always safe: a Pod that is
// there is not created again, and every other write carries the version that it was decided on.
type recent struct {
	machines sync.Map // *v1alpha1.VirtualMachine by client.ObjectKey
	pods     sync.Map // *corev1.Pod by the client.ObjectKey of its VirtualMachine
	versions sync.Map // of VirtualMachines that a Pod was made for last, by client.ObjectKey
}

// wrote remembers a VirtualMachine as the API server returned it.
func (r *recent) wrote(vm *v1alpha1.VirtualMachine) {
	r.machines.Store(client.ObjectKeyFromObject(vm), vm)
}

// made remembers a VirtualMachine's Pod that is new, and for which version of the VirtualMachine it was made.
func (r *recent) made(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) {
	r.versions.Store(client.ObjectKeyFromObject(vm), vm.ResourceVersion)
	r.wrotePod(vm, pod)
}

// madeFor reports whether there was a Pod already that was made for this version of a VirtualMachine.
func (r *recent) madeFor(vm *v1alpha1.VirtualMachine) bool {
	version, ok := r.versions.Load(client.ObjectKeyFromObject(vm))
	return ok && version == vm.ResourceVersion
}

// wrotePod remembers a VirtualMachine's Pod as the API server has returned it, unless the cache will never have it.
func (r *recent) wrotePod(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) {
	key := client.ObjectKeyFromObject(vm)
	if isLabelled(pod) {
		r.pods.Store(key, pod)
	} else {
		r.pods.Delete(key)
	}
}

// forget forgets about a VirtualMachine.
func (r *recent) forget(key client.ObjectKey) {
	r.machines.Delete(key)
	r.pods.Delete(key)
	r.versions.Delete(key)
}

// outdates reports whether the cache has yet to show what was written last. When it does, that wakes us.
func (r *recent) outdates(cached *v1alpha1.VirtualMachine) bool {
	key := client.ObjectKeyFromObject(cached)
	known, ok := r.machines.Load(key)
	if !ok {
		return false
	}
	written := known.(*v1alpha1.VirtualMachine)
	if object.Newer(written.ResourceVersion, cached.ResourceVersion) || written.UID == cached.UID && letGo(written) {
		return true
	}
	r.machines.Delete(key)
	return false
}

// latestPod returns a VirtualMachine's Pod as it was written last if the cache has not got that far, or as the cache has
// it, which may be nil. The cache has seen everything up to the version seen.
func (r *recent) latestPod(vm *v1alpha1.VirtualMachine, cached *corev1.Pod, seen string) *corev1.Pod {
	key := client.ObjectKeyFromObject(vm)
	known, ok := r.pods.Load(key)
	if !ok {
		return cached
	}
	if written := known.(*corev1.Pod); metav1.IsControlledBy(written, vm) && isAhead(written, cached, seen) {
		return written
	}
	r.pods.Delete(key)
	return cached
}

// isAhead reports whether the cache has yet to show a Pod as it was written. That one is being deleted has no version
// that we were told.
func isAhead(written, cached *corev1.Pod, seen string) bool {
	if cached == nil {
		return object.Newer(written.ResourceVersion, seen)
	}
	return object.Newer(written.ResourceVersion, cached.ResourceVersion) ||
		written.UID == cached.UID && !written.DeletionTimestamp.IsZero() && cached.DeletionTimestamp.IsZero()
}

// letGo reports whether a VirtualMachine no longer waits for the operator to go. Where nothing else held it, there is no
// later version but its end.
func letGo(vm *v1alpha1.VirtualMachine) bool {
	return !vm.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(vm, v1alpha1.VirtualMachineFinalizer)
}
