// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/hack/cluster/standin"
)

// TestVirtualMachineRestart shows that an operator is as patient with a server that fails as the one before it was.
func TestVirtualMachineRestart(t *testing.T) {
	alone(t)
	stop := exclusive(t, operatorOptions{})
	namespace := newNamespace(t)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{Evicted: "The node was low on memory."})
	pods := recordPods(t, namespace)
	vm = waitForReason(t, vm, v1alpha1.PhaseFailed, "Evicted")
	stop()
	node(t).Set(serverKey(vm), standin.Fate{})
	exclusive(t, operatorOptions{})
	pods.until(t, "the server is replaced", func(changes []change[*corev1.Pod]) bool {
		for _, change := range changes {
			if change.kind == watch.Deleted {
				if retry := vm.Status.RetryTime.Time; change.at.Before(retry) {
					t.Errorf("it was replaced at %s, before %s", change.at, retry)
				}
				return true
			}
		}
		return false
	})
	if vm = waitForActive(t, vm); vm.Status.Failures != 1 {
		t.Errorf("there were %d failures", vm.Status.Failures)
	}
}

// TestVirtualMachineLag has an operator that learns late of what others do, and of what it has done itself.
func TestVirtualMachineLag(t *testing.T) {
	t.Parallel()
	for _, late := range []string{"virtualmachines", "pods"} {
		t.Run(late, func(t *testing.T) {
			alone(t)
			exclusive(t, operatorOptions{transport: func(config *rest.Config) {
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return laggingWatch{next, "/" + late, 300 * time.Millisecond}
				})
			}})
			for _, story := range []story{
				{"toggled", testVirtualMachineToggledLate},
				{"stopped at once", testVirtualMachineStoppedAtOnce},
				{"deleted at once", testVirtualMachineDeletedAtOnce},
				{"deleted in the foreground", testVirtualMachineForeground},
				{"orphaned", testVirtualMachineOrphan},
				{"created again", testVirtualMachineRecreated},
			} {
				t.Run(story.name, func(t *testing.T) { story.test(t, newNamespace(t)) })
			}
		})
	}
}

// TestVirtualMachineWrites counts what an operator asks of the API server. What it costs must not depend on how quickly
// the operator learns of its own writes.
func TestVirtualMachineWrites(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		lag        time.Duration
	}{
		{name: "with a fresh view"},
		{"with a view of virtual machines that is half a second old", "/virtualmachines", 500 * time.Millisecond},
		{"with a view of servers that is half a second old", "/pods", 500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			alone(t)
			requests := newTally()
			exclusive(t, operatorOptions{transport: func(config *rest.Config) {
				config.Wrap(requests.wrap)
				config.Wrap(func(next http.RoundTripper) http.RoundTripper { return laggingWatch{next, tt.path, tt.lag} })
			}})
			namespace := newNamespace(t)
			requests.reset()
			vm := createVirtualMachine(t, namespace, "vm", standin.Fate{Unschedulable: "no node"})
			waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable)
			requests.check(t, namespace, map[string]int{
				"PATCH virtualmachines":        1, // the finalizer
				"POST pods":                    1,
				"PATCH virtualmachines/status": 2, // created, unschedulable
				"POST events":                  2,
			})
			requests.reset()
			if !olderThan(t, 33, noResize) {
				resize(t, vm, "1", "2G")
				waitForEvent(t, vm, v1alpha1.EventResized)
				requests.check(t, namespace, map[string]int{
					"PATCH pods/resize":            1,
					"PATCH virtualmachines/status": 1, // the generation
					"POST events":                  1,
				})
				requests.reset()
			}
			stop(t, vm)
			requests.check(t, namespace, map[string]int{
				"DELETE pods":                  1,
				"GET virtualmachines":          1, // whether it is to stop
				"GET pods 404":                 1, // whether it is gone
				"PATCH virtualmachines/status": 2, // stopping, stopped
				"POST events":                  2,
			})
			requests.reset()
			setAction(t, vm, v1alpha1.ActionActive)
			waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable)
			requests.check(t, namespace, map[string]int{
				"POST pods":                    1,
				"PATCH virtualmachines/status": 2, // created, unschedulable
				"POST events":                  2,
			})
			requests.reset()
			machines := recordVirtualMachines(t, namespace)
			mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace)
			machines.untilDeleted(t, "vm")
			requests.check(t, namespace, map[string]int{
				"PATCH virtualmachines/status": 1,
				"DELETE pods":                  1,
				"GET pods 404":                 1, // whether it is gone
				"PATCH virtualmachines":        1, // the finalizer
				"POST events":                  1,
			})
		})
	}
}

func testVirtualMachineToggledLate(t *testing.T, namespace string) {
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	pods := recordPods(t, namespace)
	waitForActive(t, vm)
	for range 5 {
		setAction(t, vm, v1alpha1.ActionInactive)
		setAction(t, vm, v1alpha1.ActionActive)
	}
	vm = waitForActive(t, vm)
	setAction(t, vm, v1alpha1.ActionInactive)
	waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
	if most := mostAtOnce(pods.all(t)); most > 1 {
		t.Errorf("there were %d servers at once", most)
	}
}

// testVirtualMachineStoppedAtOnce stops a VirtualMachine before the operator knows of the server that it has made.
func testVirtualMachineStoppedAtOnce(t *testing.T, namespace string) {
	pods := recordPods(t, namespace)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	pods.untilObject(t, serverKey(vm).Name, "is there", func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, vm) })
	stop(t, vm)
	waitForEvent(t, vm, v1alpha1.EventStopped)
	for _, reason := range []string{v1alpha1.EventDeleted, v1alpha1.EventStopped} {
		if events := eventsOn(t, vm, reason); len(events) > 1 {
			t.Errorf("of one stop there are %d events %s", len(events), reason)
		}
	}
}

// testVirtualMachineDeletedAtOnce deletes a VirtualMachine before the operator knows of the server that it has made.
func testVirtualMachineDeletedAtOnce(t *testing.T, namespace string) {
	machines, pods := recordVirtualMachines(t, namespace), recordPods(t, namespace)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	pods.untilObject(t, serverKey(vm).Name, "is there", func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, vm) })
	mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace, "--wait=false")
	gone := machines.untilDeleted(t, "vm")
	for _, change := range pods.all(t) {
		if !before(t, change.object, gone) {
			t.Errorf("the server was %s after its virtual machine had gone", change.kind)
		}
	}
	if err := admin(t).Get(t.Context(), serverKey(vm), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("the server is still there: %v", err)
	}
}
