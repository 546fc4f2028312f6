// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/cloudnative/v1alpha1"
)

var now = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// aMachine is an active VirtualMachine.
func aMachine(change ...func(*v1alpha1.VirtualMachine)) *v1alpha1.VirtualMachine {
	vm := &v1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", UID: "vm", Generation: 1},
		Spec: v1alpha1.VirtualMachineSpec{Action: v1alpha1.ActionActive, Resource: v1alpha1.ResourceSpec{
			CPU: resource.MustParse("2"), Memory: resource.MustParse("4G"),
		}},
	}
	for _, change := range change {
		change(vm)
	}
	return vm
}

func inactive(vm *v1alpha1.VirtualMachine) { vm.Spec.Action = v1alpha1.ActionInactive }

func deleted(vm *v1alpha1.VirtualMachine) { vm.DeletionTimestamp = new(metav1.NewTime(now)) }

// failed gives a VirtualMachine a number of failures, the last of which was that of the Pod of aPod.
func failed(failures int32, retry time.Time) func(*v1alpha1.VirtualMachine) {
	return func(vm *v1alpha1.VirtualMachine) {
		vm.Status.Failures, vm.Status.RetryTime = failures, new(metav1.NewTime(retry))
		vm.Status.Server = &v1alpha1.ServerStatus{ID: "pod"}
	}
}

// aPod is the VirtualMachine's Pod as it is created.
func aPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := newPod(aMachine(), "image")
	pod.UID = "pod"
	for _, change := range change {
		change(pod)
	}
	return pod
}

func going(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(now)) }

func evicted(pod *corev1.Pod) {
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "The node was low on memory."
}

func scheduledTo(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = node }
}

func running(pod *corev1.Pod) {
	scheduledTo("node")(pod)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name:      containerName,
		State:     corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Hour))}},
		Resources: pod.Spec.Containers[0].Resources.DeepCopy(),
	}}
}

// readyFor makes a Pod run and be ready since a while ago.
func readyFor(while time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		running(pod)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-while)),
		})
	}
}

func waitingFor(reason string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		running(pod)
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "because"}}
	}
}

func unlabelled(pod *corev1.Pod) { pod.Labels = nil }

func TestDecide(t *testing.T) {
	smaller := func(vm *v1alpha1.VirtualMachine) { vm.Spec.Resource.CPU = resource.MustParse("1") }
	cases := map[string]struct {
		reason string
		vm     *v1alpha1.VirtualMachine
		pod    *corev1.Pod
		want   plan
	}{
		"New":             {"an active one needs a server", aMachine(), nil, plan{create: true, confirm: true}},
		"Inactive":        {"an inactive one needs none", aMachine(inactive), nil, plan{}},
		"Complete":        {"a server that is as asked for stays as it is", aMachine(), aPod(), plan{}},
		"Going":           {"there cannot be another before this one is gone", aMachine(), aPod(going), plan{}},
		"GoingFailed":     {"one that goes need not be deleted", aMachine(failed(1, now)), aPod(evicted, going), plan{}},
		"Stop":            {"an inactive one has no server", aMachine(inactive), aPod(), plan{delete: "the virtual machine is inactive", confirm: true}},
		"StopFailed":      {"nor one that has failed and would be waited for", aMachine(inactive), aPod(evicted), plan{delete: "the virtual machine is inactive", confirm: true}},
		"Stopping":        {"it is deleted once", aMachine(inactive), aPod(going), plan{}},
		"Resize":          {"a server follows the spec", aMachine(smaller), aPod(), plan{resize: true}},
		"ResizeGoing":     {"one that goes need not", aMachine(smaller), aPod(going), plan{}},
		"ResizeFailed":    {"one that is over cannot", aMachine(smaller, failed(1, now.Add(time.Second))), aPod(evicted), plan{next: now.Add(time.Second)}},
		"FirstFailure":    {"a server that has failed is replaced after a while", aMachine(), aPod(evicted), plan{next: now.Add(10 * time.Second)}},
		"SecondFailure":   {"and the next after twice that", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 1 }), aPod(evicted), plan{next: now.Add(20 * time.Second)}},
		"ManyFailures":    {"but never later than this", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 1000 }), aPod(evicted), plan{next: now.Add(5 * time.Minute)}},
		"Waiting":         {"a failure that is known waits no longer for being seen again", aMachine(failed(3, now.Add(time.Second))), aPod(evicted), plan{next: now.Add(time.Second)}},
		"Due":             {"the wait ends", aMachine(failed(3, now)), aPod(evicted), plan{delete: "it has failed"}},
		"Succeeded":       {"a server has no business to succeed", aMachine(failed(1, now)), aPod(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), plan{delete: "it has failed"}},
		"Unlabelled":      {"a server that nothing is heard of is replaced", aMachine(), aPod(unlabelled, evicted), plan{delete: "it has lost its label"}},
		"UnlabelledGoing": {"once", aMachine(), aPod(unlabelled, going), plan{}},
		"ImagePull":       {"a kubelet tries again by itself", aMachine(), aPod(waitingFor("ImagePullBackOff")), plan{}},
		"Forgive":         {"failures are forgotten, when the time has come", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 2 }), aPod(readyFor(time.Minute)), plan{next: now.Add(4 * time.Minute)}},
		"Forgiven":        {"then there is nothing to wait for", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 2 }), aPod(readyFor(5 * time.Minute)), plan{}},
		"DeletedWhileOut": {"whoever deletes a server that has failed ends the wait", aMachine(failed(3, now.Add(time.Minute))), nil, plan{create: true, confirm: true}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(c.vm, c.pod, now), cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestFailuresOf(t *testing.T) {
	cases := map[string]struct {
		reason string
		vm     *v1alpha1.VirtualMachine
		pod    *corev1.Pod
		want   int32
	}{
		"Counted":   {"one Pod is one failure, however often it is seen", aMachine(failed(3, now)), aPod(evicted), 3},
		"Another":   {"another Pod is another failure", aMachine(failed(3, now)), aPod(evicted, func(pod *corev1.Pod) { pod.UID = "other" }), 4},
		"Replacing": {"a failure is not forgotten while the next server comes", aMachine(failed(3, now)), aPod(), 3},
		"None":      {"nor while there is none", aMachine(failed(3, now)), nil, 3},
		"Ready":     {"nor because the next server is ready for a moment", aMachine(failed(3, now)), aPod(readyFor(time.Minute)), 3},
		"Steady":    {"it is when that one is steady", aMachine(failed(3, now)), aPod(readyFor(5 * time.Minute)), 0},
		"Stopped":   {"and when its user begins anew", aMachine(failed(3, now), inactive), aPod(evicted), 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, _ := failuresOf(c.vm, c.pod, now)
			if got != c.want {
				t.Errorf("%s: %d failures, not %d", c.reason, got, c.want)
			}
		})
	}
}

func TestResources(t *testing.T) {
	cases := map[string]struct {
		reason      string
		cpu, memory string
		want        corev1.ResourceList
	}{
		"AsTheyAre": {"what a Pod can have it gets", "1500m", "4G", corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("4G"),
		}},
		"RoundedUp": {"a Pod has no less than a thousandth of a CPU, and whole bytes", "1n", "500m", corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1"),
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := aMachine()
			vm.Spec.Resource.CPU, vm.Spec.Resource.Memory = resource.MustParse(c.cpu), resource.MustParse(c.memory)
			if diff := cmp.Diff(c.want, resourcesOf(vm)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if pod := newPod(vm, "image"); !hasResources(pod, vm) {
				t.Error("a new server would have to be resized")
			}
		})
	}
}

func TestSetResources(t *testing.T) {
	cases := map[string]struct {
		reason string
		has    corev1.ResourceRequirements
	}{
		"Others":  {"a server gets what is asked for", aPod().Spec.Containers[0].Resources},
		"None":    {"also where admission has taken away what it had", corev1.ResourceRequirements{}},
		"NoLimit": {"or half of it", corev1.ResourceRequirements{Requests: resourcesOf(aMachine())}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm, pod := aMachine(), aPod()
			pod.Spec.Containers[0].Resources = c.has
			pod.Spec.Containers = append([]corev1.Container{{Name: "injected"}}, pod.Spec.Containers...)
			vm.Spec.Resource.CPU, vm.Spec.Resource.Memory = resource.MustParse("1"), resource.MustParse("1G")
			if hasResources(pod, vm) {
				t.Error("the server is taken to have what it does not have")
			}
			setResources(pod, vm)
			if !hasResources(pod, vm) || len(pod.Spec.Containers[0].Resources.Limits) > 0 {
				t.Errorf("%s: the containers have %+v", c.reason, pod.Spec.Containers)
			}
		})
	}
}

func TestMayHaveServer(t *testing.T) {
	stopped := func(vm *v1alpha1.VirtualMachine) {
		inactive(vm)
		vm.Status.Phase, vm.Status.ObservedGeneration = v1alpha1.PhaseStopped, vm.Generation
	}
	cases := map[string]struct {
		reason string
		vm     *v1alpha1.VirtualMachine
		want   bool
	}{
		"New":      {"to create one tells whether there is one", aMachine(), false},
		"Known":    {"one that was there may still be", aMachine(failed(1, now)), true},
		"Inactive": {"one may have been made meanwhile", aMachine(inactive), true},
		"Stopped":  {"it was looked for already", aMachine(stopped), false},
		"Toggled":  {"for another spec", aMachine(stopped, func(vm *v1alpha1.VirtualMachine) { vm.Generation++ }), true},
		"Deleted":  {"whoever goes leaves none behind", aMachine(stopped, deleted), true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := mayHaveServer(c.vm); got != c.want {
				t.Errorf("%s: %v", c.reason, got)
			}
		})
	}
}
