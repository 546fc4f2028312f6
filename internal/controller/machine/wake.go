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

// userPriority is the priority of a Machine that a user has changed. Only a due flip has a higher one
// (queue.DuePriority). Other work has at most priority 0, such as the operator's own writes and new Machines: a user
// can create thousands of Machines at once.
const userPriority = 50

// workQueue has the Machines that wait for a worker.
type workQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// waking returns an event handler that adds Machines to the queue. The function machines returns the Machines that an
// object concerns.
func waking(machines func(client.Object) []reconcile.Request) handler.EventHandler {
	wake := func(q workQueue, byUser bool, objects ...client.Object) {
		var options priorityqueue.AddOpts // without one, the queue uses handler.LowPriority for the initial list
		if byUser {
			options.Priority = new(userPriority)
		}
		requests := sets.New[reconcile.Request]()
		for _, object := range objects {
			requests.Insert(machines(object)...)
		}
		q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(options, requests.UnsortedList()...)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workQueue) {
			sw, ok := e.Object.(*v1beta1.Switch)
			wake(q, ok && isUp(sw), e.Object) // a Switch that is up may be due, also at the start
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workQueue) {
			wake(q, changedByUser(e.ObjectOld, e.ObjectNew), e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workQueue) { wake(q, false, e.Object) },
	}
}

// changedByUser reports whether a user changed a Machine or a Switch. The operator changes the status, finalizers and
// owners, and the position of a Switch together with its annotation. Other changes by the operator are rare, and may
// count as changes by a user.
func changedByUser(old, updated client.Object) bool {
	before, after := old.GetAnnotations(), updated.GetAnnotations()
	if before[v1beta1.FlippedAtAnnotation] != after[v1beta1.FlippedAtAnnotation] {
		return false
	}
	return old.GetGeneration() != updated.GetGeneration() ||
		!maps.Equal(old.GetLabels(), updated.GetLabels()) || !maps.Equal(before, after)
}

// itself returns the request for a Machine.
func itself(machine client.Object) []reconcile.Request {
	return []reconcile.Request{requestOf(machine.GetNamespace(), machine.GetName())}
}

// machinesOf returns the Machines that an event of a Switch concerns. These are its controller, the Machines that
// select it, and the Machine that would give a Switch the same name.
func (c *Controller) machinesOf(object client.Object) []reconcile.Request {
	wake := func(name string) reconcile.Request { return requestOf(object.GetNamespace(), name) }
	var requests []reconcile.Request
	prefix, _ := splitOrdinal(object.GetName())
	if name, ok := strings.CutSuffix(prefix, "-"); ok {
		requests = append(requests, wake(name))
	}
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == "Machine" {
		requests = append(requests, wake(owner.Name))
	}
	if name := object.GetLabels()[v1beta1.MachineLabel]; name != "" {
		requests = append(requests, wake(name))
	}
	for _, m := range c.mayBeSelecting(object) {
		if selector, err := m.SwitchSelector(); err == nil && selector.Matches(labels.Set(object.GetLabels())) {
			requests = append(requests, wake(m.Name))
		}
	}
	return requests
}

// mayBeSelecting returns the Machines whose selector requires a label of the object, or has no matchLabels.
func (c *Controller) mayBeSelecting(object client.Object) (machines []*v1beta1.Machine) {
	add := func(label, value string) {
		selecting, err := c.machines.ByIndex(machinesSelecting, labelKey(object.GetNamespace(), label, value))
		if err != nil {
			panic(err) // the index does not exist: a mistake in Setup
		}
		for _, machine := range selecting {
			machines = append(machines, machine.(*v1beta1.Machine))
		}
	}
	add(noLabel, "")
	for label, value := range object.GetLabels() {
		add(label, value)
	}
	return machines
}

func requestOf(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}
