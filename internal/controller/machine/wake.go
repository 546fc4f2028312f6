// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"maps"
	"slices"
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

// Priorities of Machines that wait to be reconciled, the highest first, and of each the one that has waited for longest. A
// Machine waits once, with the highest that it was given.
const (
	// flipPriority is for a switch that is due: nothing else has to happen at a certain time.
	flipPriority = 100

	// userPriority is for what somebody has changed, and is waiting for.
	userPriority = 50

	// Zero is for everything else: new Machines, which may come by the thousand, and news of the operator's own writes.
	// What was there at the start has handler.LowPriority, which is -100.
)

// A queue has the Machines that wait to be reconciled.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// waking wakes the Machines that care about an object when something happens to it.
func waking(machines func(client.Object) []reconcile.Request) handler.EventHandler {
	wake := func(q queue, byUser bool, objects ...client.Object) {
		var options priorityqueue.AddOpts // without a priority, what the event deserves: less for what was there at the start
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
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			// Also at the start: it may be due.
			sw, ok := e.Object.(*v1beta1.Switch)
			wake(q, ok && isUp(sw), e.Object)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			wake(q, changedByUser(e.ObjectOld, e.ObjectNew), e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { wake(q, false, e.Object) },
	}
}

// changedByUser tells what people change about Machines and switches from what the operator does: status, finalizers and
// owners, and the position of a switch together with the instant. What it does rarely may pass for a user's change.
func changedByUser(old, updated client.Object) bool {
	before, after := old.GetAnnotations(), updated.GetAnnotations()
	if before[v1beta1.FlippedAtAnnotation] != after[v1beta1.FlippedAtAnnotation] {
		return false
	}
	return old.GetGeneration() != updated.GetGeneration() ||
		!maps.Equal(old.GetLabels(), updated.GetLabels()) || !maps.Equal(before, after)
}

// itself returns a Machine.
func itself(machine client.Object) []reconcile.Request {
	return []reconcile.Request{requestOf(machine.GetNamespace(), machine.GetName())}
}

// machinesOf returns the Machines that care about a switch: the one that controls it, those that select it, and the
// one that would give its name to a switch of its own.
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

// mayBeSelecting returns the Machines with a selector of their own that have a label in common with an object, or need none.
func (c *Controller) mayBeSelecting(object client.Object) (machines []*v1beta1.Machine) {
	add := func(label, value string) {
		selecting, err := c.machines.ByIndex(machinesSelecting, selectingKey(object.GetNamespace(), label, value))
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

// noLabel stands for the label that a selector needs which names none.
const noLabel = ""

// indexSelecting indexes the Machines that have a selector of their own by their namespace and one of the labels that it
// needs. A switch is then compared with few of them, however many there are.
func indexSelecting(object any) ([]string, error) {
	m := object.(*v1beta1.Machine)
	selector := m.Spec.Switches.Selector
	if selector == nil {
		return nil, nil
	}
	if len(selector.MatchLabels) == 0 {
		return []string{selectingKey(m.Namespace, noLabel, "")}, nil
	}
	label := slices.Min(slices.Collect(maps.Keys(selector.MatchLabels)))
	return []string{selectingKey(m.Namespace, label, string(selector.MatchLabels[label]))}, nil
}

func selectingKey(namespace, label, value string) string {
	return namespace + "/" + label + "=" + value
}

func requestOf(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}
