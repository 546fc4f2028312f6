// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
)

// userPriority is the priority of a Machine if a user has changed it or one of its Switches. Two kinds of work have a
// higher priority (queue.DuePriority): a due flip, and a status that has waited for statusDelay. All other work has
// priority 0 or lower. This includes the watch events of the operator's own writes. It also includes new Machines,
// because a user can create thousands of Machines at once.
const userPriority = 50

// workQueue has the Machines that wait for a worker.
type workQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// waking returns an event handler that adds Machines to the queue. The function "machines" returns the names of the
// Machines that an object affects. These Machines are in the namespace of the object.
func (c *Controller) waking(machines func(client.Object) []string) handler.EventHandler {
	wake := func(q workQueue, byUser bool, objects ...client.Object) {
		var options priorityqueue.AddOpts // without a priority, the queue uses handler.LowPriority for the initial list
		if byUser {
			options.Priority = new(userPriority)
		}
		requests := sets.New[reconcile.Request]()
		for _, object := range objects {
			for _, name := range machines(object) {
				key := types.NamespacedName{Namespace: object.GetNamespace(), Name: name}
				requests.Insert(reconcile.Request{NamespacedName: key})
			}
		}
		q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(options, requests.UnsortedList()...)
		for request := range requests {
			c.hurryStatus(request)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workQueue) {
			sw, ok := e.Object.(*v1beta1.Switch)
			wake(q, ok && isUp(sw), e.Object) // a Switch that is up may be due, even in the initial list
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workQueue) {
			wake(q, changedByUser(e.ObjectOld, e.ObjectNew), e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workQueue) { wake(q, false, e.Object) },
	}
}

// changedByUser reports whether a user changed a Machine or a Switch. It ignores the fields that the operator changes:
// the status, the finalizers and the owners. It also ignores changes of a position together with FlippedAtAnnotation.
// For other changes by the operator, which are rare, it returns true.
func changedByUser(old, updated client.Object) bool {
	before, after := old.GetAnnotations(), updated.GetAnnotations()
	if before[v1beta1.FlippedAtAnnotation] != after[v1beta1.FlippedAtAnnotation] {
		return false
	}
	return old.GetGeneration() != updated.GetGeneration() ||
		!maps.Equal(old.GetLabels(), updated.GetLabels()) || !maps.Equal(before, after)
}

// itself returns the name of a Machine.
func itself(machine client.Object) []string { return []string{machine.GetName()} }

// machinesOf returns the names of the Machines that a Switch affects: its controller, and the Machines that select it.
// It also returns the name of the Machine that could use the name of this Switch for a new Switch. A name can occur
// twice, and the Machine may not exist.
func (c *Controller) machinesOf(object client.Object) (names []string) {
	prefix, _ := splitOrdinal(object.GetName())
	if name, ok := strings.CutSuffix(prefix, "-"); ok {
		names = append(names, name)
	}
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == "Machine" {
		names = append(names, owner.Name)
	}
	if name := object.GetLabels()[v1beta1.MachineLabel]; name != "" {
		names = append(names, name)
	}
	for _, key := range labelKeys(object) {
		for _, m := range byIndex[*v1beta1.Machine](c.machines, machinesSelecting, key) {
			if selector, err := m.SwitchSelector(); err == nil && selector.Matches(labels.Set(object.GetLabels())) {
				names = append(names, m.Name)
			}
		}
	}
	return names
}
