// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"container.training/useless/api/cloudnative/v1alpha1"
)

// recent remembers the VirtualMachines that this process has written until its cache shows them. What would be decided
// before is refused, as all that is written carries the version that it was decided on; so forgetting it, as a restart
// does, is always safe.
type recent struct {
	machines sync.Map // *v1alpha1.VirtualMachine by client.ObjectKey
}

// wrote remembers a VirtualMachine as the API server returned it.
func (r *recent) wrote(vm *v1alpha1.VirtualMachine) {
	r.machines.Store(client.ObjectKeyFromObject(vm), vm)
}

// forget forgets about a VirtualMachine.
func (r *recent) forget(key client.ObjectKey) { r.machines.Delete(key) }

// outdates reports whether the cache has yet to show what was written last. When it does, that wakes us.
func (r *recent) outdates(cached *v1alpha1.VirtualMachine) bool {
	key := client.ObjectKeyFromObject(cached)
	known, ok := r.machines.Load(key)
	if !ok {
		return false
	}
	written := known.(*v1alpha1.VirtualMachine)
	order, err := resourceversion.CompareResourceVersion(written.ResourceVersion, cached.ResourceVersion)
	if err == nil && order > 0 || written.UID == cached.UID && letGo(written) {
		return true
	}
	r.machines.Delete(key)
	return false
}

// letGo reports whether a VirtualMachine no longer waits for the operator to go. Where nothing else held it, there is no
// later version but its end.
func letGo(vm *v1alpha1.VirtualMachine) bool {
	return !vm.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(vm, v1alpha1.VirtualMachineFinalizer)
}
