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

// TestVirtualMachineRestart restarts the operator after a Pod has failed. The new operator must continue the backoff of
// the previous one.
func TestVirtualMachineRestart(t *testing.T) {
	useExclusiveCluster(t)
	stop := runOperatorFor(t, operatorOptions{})
	namespace := newNamespace(t)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{Evicted: "The node was low on memory."})
	pods := recordPods(t, namespace)
	vm = waitForReason(t, vm, v1alpha1.PhaseFailed, "Evicted")
	stop()
	node(t).Set(podKey(vm), standin.Fate{})
	runOperatorFor(t, operatorOptions{})
	pods.until(t, "the Pod is replaced", func(changes []change[*corev1.Pod]) bool {
		for _, change := range changes {
			if change.kind == watch.Deleted {
				if retry := vm.Status.RetryTime.Time; change.at.Before(retry) {
					t.Errorf("the Pod was replaced at %s, before status.retryTime %s", change.at, retry)
				}
				return true
			}
		}
		return false
	})
	if vm = waitForActive(t, vm); vm.Status.Failures != 1 {
		t.Errorf("status.failures is %d, want 1", vm.Status.Failures)
	}
}

// TestVirtualMachineStaleCache runs an operator whose cache receives all changes of one resource 0.3 s late, including
// the operator's own writes.
func TestVirtualMachineStaleCache(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"virtualmachines", "pods"} {
		t.Run(resource, func(t *testing.T) {
			useExclusiveCluster(t)
			runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return laggingWatch{next, "/" + resource, 300 * time.Millisecond}
				})
			}})
			for _, tt := range []namespacedTest{
				{"toggled", testVirtualMachineToggledLate},
				{"stopped at once", testVirtualMachineStoppedAtOnce},
				{"deleted at once", testVirtualMachineDeletedAtOnce},
				{"deleted in the foreground", testVirtualMachineForeground},
				{"orphaned", testVirtualMachineOrphan},
				{"created again", testVirtualMachineRecreated},
			} {
				t.Run(tt.name, func(t *testing.T) { tt.test(t, newNamespace(t)) })
			}
		})
	}
}

// TestVirtualMachineWrites counts the operator's requests to the API server. The number must be the same if a cache
// shows the operator's writes late.
func TestVirtualMachineWrites(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		lag        time.Duration
	}{
		{name: "with an up-to-date cache"},
		{"with a cache of virtual machines that is half a second old", "/virtualmachines", 500 * time.Millisecond},
		{"with a cache of Pods that is half a second old", "/pods", 500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			useExclusiveCluster(t)
			requests := newRequestCounter()
			runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
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
					"PATCH virtualmachines/status": 1, // observedGeneration
					"POST events":                  1,
				})
				requests.reset()
			}
			stop(t, vm)
			requests.check(t, namespace, map[string]int{
				"DELETE pods":                  1,
				"GET virtualmachines":          1, // checks that it is still inactive
				"GET pods 404":                 1, // checks that the Pod is deleted
				"PATCH virtualmachines/status": 2, // stopping, stopped
				"POST events":                  2,
			})
			requests.reset()
			setAction(t, vm, v1alpha1.ActionActive)
			waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable)
			requests.check(t, namespace, map[string]int{
				"POST pods":                    1,
				"GET virtualmachines":          1, // checks that it is still active
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
				"GET pods 404":                 1, // checks that the Pod is deleted
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
		t.Errorf("%d Pods existed at the same time, want at most 1", most)
	}
}

// testVirtualMachineStoppedAtOnce stops a VirtualMachine as soon as its Pod exists. If the cache of Pods is late, it
// does not contain the Pod yet.
func testVirtualMachineStoppedAtOnce(t *testing.T, namespace string) {
	pods := recordPods(t, namespace)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	pods.untilObject(t, podKey(vm).Name, "exists", func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, vm) })
	stop(t, vm)
	waitForEvent(t, vm, v1alpha1.EventStopped)
	for _, reason := range []string{v1alpha1.EventDeleted, v1alpha1.EventStopped} {
		if events := eventsOn(t, vm, reason); len(events) > 1 {
			t.Errorf("one stop caused %d events %s, want one", len(events), reason)
		}
	}
}

// testVirtualMachineDeletedAtOnce deletes a VirtualMachine as soon as its Pod exists. If the cache of Pods is late, it
// does not contain the Pod yet.
func testVirtualMachineDeletedAtOnce(t *testing.T, namespace string) {
	machines, pods := recordVirtualMachines(t, namespace), recordPods(t, namespace)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	pods.untilObject(t, podKey(vm).Name, "exists", func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, vm) })
	mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace, "--wait=false")
	gone := machines.untilDeleted(t, "vm")
	for _, change := range pods.all(t) {
		if !before(t, change.object, gone) {
			t.Errorf("the Pod was %s after the virtual machine was deleted", change.kind)
		}
	}
	if err := admin(t).Get(t.Context(), podKey(vm), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("get the Pod after the virtual machine is deleted: got error %v, want NotFound", err)
	}
}
