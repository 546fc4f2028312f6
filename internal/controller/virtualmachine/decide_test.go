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

// aMachine returns an active VirtualMachine.
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

// failed sets the number of failures, and the time at which the operator replaces the failed Pod. The failed Pod is
// aPod.
func failed(failures int32, retry time.Time) func(*v1alpha1.VirtualMachine) {
	return func(vm *v1alpha1.VirtualMachine) {
		vm.Status.Failures, vm.Status.RetryTime = failures, new(metav1.NewTime(retry))
		vm.Status.Server = &v1alpha1.ServerStatus{ID: "pod"}
	}
}

// aPod returns the Pod of aMachine after its creation.
func aPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := newPod(aMachine(), "image")
	pod.UID = "pod"
	for _, change := range change {
		change(pod)
	}
	return pod
}

func terminating(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(now)) }

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

// readyFor makes a Pod running and ready. The Pod became ready the given duration before now.
func readyFor(duration time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		running(pod)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-duration)),
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
		"New":             {"an active VirtualMachine needs a Pod", aMachine(), nil, plan{create: true, confirm: true}},
		"Inactive":        {"an inactive VirtualMachine needs no Pod", aMachine(inactive), nil, plan{}},
		"Complete":        {"a Pod with the resources of the spec is not changed", aMachine(), aPod(), plan{}},
		"Going":           {"a new Pod cannot be created until the old Pod with the same name is gone", aMachine(), aPod(terminating), plan{}},
		"GoingFailed":     {"a failed Pod is not deleted twice", aMachine(failed(1, now)), aPod(evicted, terminating), plan{}},
		"Stop":            {"the Pod of an inactive VirtualMachine is deleted", aMachine(inactive), aPod(), plan{delete: "the VirtualMachine is inactive", confirm: true}},
		"StopFailed":      {"a failed Pod is deleted without a delay", aMachine(inactive), aPod(evicted), plan{delete: "the VirtualMachine is inactive", confirm: true}},
		"Stopping":        {"a Pod is deleted once", aMachine(inactive), aPod(terminating), plan{}},
		"Resize":          {"a changed spec resizes the Pod", aMachine(smaller), aPod(), plan{resize: true}},
		"ResizeGoing":     {"a terminating Pod is not resized", aMachine(smaller), aPod(terminating), plan{}},
		"ResizeFailed":    {"a failed Pod cannot be resized", aMachine(smaller, failed(1, now.Add(time.Second))), aPod(evicted), plan{next: now.Add(time.Second)}},
		"FirstFailure":    {"a failed Pod is replaced after a delay", aMachine(), aPod(evicted), plan{next: now.Add(10 * time.Second)}},
		"SecondFailure":   {"the second delay is twice as long", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 1 }), aPod(evicted), plan{next: now.Add(20 * time.Second)}},
		"ManyFailures":    {"the delay has a maximum", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 1000 }), aPod(evicted), plan{next: now.Add(5 * time.Minute)}},
		"Waiting":         {"the delay does not start again for the same failure", aMachine(failed(3, now.Add(time.Second))), aPod(evicted), plan{next: now.Add(time.Second)}},
		"Due":             {"the Pod is replaced after the delay", aMachine(failed(3, now)), aPod(evicted), plan{delete: "it has failed"}},
		"Succeeded":       {"a Pod that succeeded is replaced like a failed Pod", aMachine(failed(1, now)), aPod(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), plan{delete: "it has failed"}},
		"Unlabelled":      {"a Pod without its label is not in the cache, so it is replaced", aMachine(), aPod(unlabelled, evicted), plan{delete: "its label was removed"}},
		"UnlabelledGoing": {"a Pod without its label is deleted once", aMachine(), aPod(unlabelled, terminating), plan{}},
		"ImagePull":       {"the kubelet retries to pull the image, so the Pod is not replaced", aMachine(), aPod(waitingFor("ImagePullBackOff")), plan{}},
		"Forgive":         {"failures are forgotten when the Pod was ready long enough", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 2 }), aPod(readyFor(time.Minute)), plan{next: now.Add(4 * time.Minute)}},
		"Forgiven":        {"after the failures are forgotten, nothing is due", aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Status.Failures = 2 }), aPod(readyFor(5 * time.Minute)), plan{}},
		"Delete":          {"the Pod of a deleted VirtualMachine is deleted", aMachine(deleted), aPod(), plan{delete: "the VirtualMachine is being deleted"}},
		"DeleteInactive":  {"a deletion is final, so it needs no confirmation", aMachine(inactive, deleted), aPod(), plan{delete: "the VirtualMachine is being deleted"}},
		"Deleting":        {"the finalizer stays until the Pod is gone", aMachine(deleted), aPod(terminating), plan{}},
		"Deleted":         {"the finalizer is removed after the Pod is gone", aMachine(deleted), nil, plan{removeFinalizer: true}},
		"DeletedWhileOut": {"if a user deletes the failed Pod, a new Pod is created without a delay", aMachine(failed(3, now.Add(time.Minute))), nil, plan{create: true, confirm: true}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(c.vm, c.pod, now, false), cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestDecideFresh checks that a VirtualMachine from the API server is not read again.
func TestDecideFresh(t *testing.T) {
	if p := decide(aMachine(), nil, now, true); !p.create || p.confirm {
		t.Errorf("without a Pod: got %+v", p)
	}
	if p := decide(aMachine(inactive), aPod(), now, true); p.delete == "" || p.confirm {
		t.Errorf("inactive: got %+v", p)
	}
}

func TestFailuresOf(t *testing.T) {
	cases := map[string]struct {
		reason string
		vm     *v1alpha1.VirtualMachine
		pod    *corev1.Pod
		want   int32
	}{
		"Counted":   {"a failure of the same Pod is counted once", aMachine(failed(3, now)), aPod(evicted), 3},
		"Another":   {"a failure of another Pod is counted, too", aMachine(failed(3, now)), aPod(evicted, func(pod *corev1.Pod) { pod.UID = "other" }), 4},
		"Replacing": {"failures are kept while the next Pod starts", aMachine(failed(3, now)), aPod(), 3},
		"None":      {"failures are kept while there is no Pod", aMachine(failed(3, now)), nil, 3},
		"Ready":     {"failures are kept if the next Pod is ready for a short time", aMachine(failed(3, now)), aPod(readyFor(time.Minute)), 3},
		"Steady":    {"failures are forgotten when the Pod was ready for 5 minutes", aMachine(failed(3, now)), aPod(readyFor(5 * time.Minute)), 0},
		"Stopped":   {"failures are forgotten when the VirtualMachine becomes inactive", aMachine(failed(3, now), inactive), aPod(evicted), 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, _ := failuresOf(c.vm, c.pod, now)
			if got != c.want {
				t.Errorf("%s: got %d failures, want %d", c.reason, got, c.want)
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
		"AsTheyAre": {"thousandths of a CPU and whole bytes are not changed", "1500m", "4G", corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("4G"),
		}},
		"RoundedUp": {"CPU is rounded up to thousandths, and memory to bytes", "1n", "500m", corev1.ResourceList{
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
				t.Error("a new Pod does not have the resources of the spec")
			}
		})
	}
}

func TestSetResources(t *testing.T) {
	cases := map[string]struct {
		reason string
		has    corev1.ResourceRequirements
	}{
		"Others":  {"resources that differ from the spec are replaced", aPod().Spec.Containers[0].Resources},
		"None":    {"resources that an admission webhook removed are added", corev1.ResourceRequirements{}},
		"NoLimit": {"limits that an admission webhook removed are added", corev1.ResourceRequirements{Requests: resourcesOf(aMachine())}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm, pod := aMachine(), aPod()
			pod.Spec.Containers[0].Resources = c.has
			pod.Spec.Containers = append([]corev1.Container{{Name: "injected"}}, pod.Spec.Containers...)
			vm.Spec.Resource.CPU, vm.Spec.Resource.Memory = resource.MustParse("1"), resource.MustParse("1G")
			if hasResources(pod, vm) {
				t.Error("hasResources is true before the resize")
			}
			setResources(pod, vm)
			if !hasResources(pod, vm) || len(pod.Spec.Containers[0].Resources.Limits) > 0 {
				t.Errorf("%s: got containers %+v", c.reason, pod.Spec.Containers)
			}
		})
	}
}

func TestMayHavePod(t *testing.T) {
	stopped := func(vm *v1alpha1.VirtualMachine) {
		inactive(vm)
		vm.Status.Phase, vm.Status.ObservedGeneration = v1alpha1.PhaseStopped, vm.Generation
	}
	cases := map[string]struct {
		reason string
		vm     *v1alpha1.VirtualMachine
		want   bool
	}{
		"New":      {"if a Pod exists, the attempt to create another Pod finds it", aMachine(), false},
		"Known":    {"a known Pod may still exist", aMachine(failed(1, now)), true},
		"Inactive": {"a Pod may have been created before the stop", aMachine(inactive), true},
		"Stopped":  {"an earlier reconcile found no Pod", aMachine(stopped), false},
		"Toggled":  {"the status is about an older generation", aMachine(stopped, func(vm *v1alpha1.VirtualMachine) { vm.Generation++ }), true},
		"Deleted":  {"a deleted VirtualMachine must not leave a Pod", aMachine(stopped, deleted), true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := mayHavePod(c.vm); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}
