// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"container.training/useless/api/cloudnative/v1alpha1"
)

// letters maps each letter of a fuzz input to a change of a Pod.
var letters = map[rune]func(*corev1.Pod){
	'g': terminating,
	'e': evicted,
	'n': scheduledTo("node"),
	'r': running,
	'R': readyFor(time.Minute),
	'F': readyFor(10 * time.Minute),
	'u': unschedulable,
	'l': unlabelled,
	'w': waitingFor("CrashLoopBackOff"),
	's': func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded },
	'q': func(pod *corev1.Pod) {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources = corev1.ResourceRequirements{}
		}
	},
}

// spell returns a new Pod with the change of each letter in text, or nil if text is empty.
func spell(text string) *corev1.Pod {
	var pod *corev1.Pod
	for _, letter := range text {
		if pod == nil {
			pod = aPod()
		}
		if change, ok := letters[letter]; ok {
			change(pod)
		}
	}
	if strings.ContainsRune(text, 'c') { // after all other changes, which need the container
		pod.Spec.Containers = nil
	}
	return pod
}

// FuzzDecide calls decide with random VirtualMachines and Pods. A plan must have at most one action, and no action for
// a terminating Pod. After a resize, the next plan must not resize again. Writing the status must not change the plan.
func FuzzDecide(f *testing.F) {
	f.Add("", true, int32(0), int64(-1), int64(2000))
	f.Add("pR", true, int32(3), int64(-1), int64(1000))
	f.Add("pe", true, int32(1), int64(10), int64(2000))
	f.Add("peg", false, int32(1), int64(0), int64(2000))
	f.Fuzz(func(t *testing.T, text string, active bool, failures int32, retryIn, milliCPU int64) {
		vm, pod := aMachine(), spell(text)
		if !active {
			inactive(vm)
		}
		vm.Spec.Resource.CPU = *resource.NewMilliQuantity(max(milliCPU, 1), resource.DecimalSI)
		if vm.Status.Failures = max(failures, 0); retryIn >= 0 {
			failed(vm.Status.Failures, now.Add(time.Duration(retryIn%3600)*time.Second))(vm)
		}
		p := decide(vm, pod, now, false)
		checkPlan(t, p, vm, pod)
		if p.resize {
			setResources(pod, vm)
			if again := decide(vm, pod, now, false); again.resize {
				t.Errorf("the Pod is resized again: %v", pod.Spec.Containers)
			}
		}
		vm.Status = newStatus(vm, pod, outcome{}, usage{}, now)
		again := decide(vm, pod, now, false)
		if p.resize = false; !reflect.DeepEqual(p, again) {
			t.Errorf("the plan changes after the status was written: %+v, then %+v", p, again)
		}
	})
}

func checkPlan(t *testing.T, p plan, vm *v1alpha1.VirtualMachine, pod *corev1.Pod) {
	t.Helper()
	if p.create && (pod != nil || !isActive(vm)) {
		t.Errorf("the plan creates a Pod for an inactive VirtualMachine, or in addition to %v", pod)
	}
	if !p.next.IsZero() && !p.next.After(now) {
		t.Errorf("the next reconcile is in the past: %s", p.next)
	}
	if pod == nil || !pod.DeletionTimestamp.IsZero() {
		if p.resize || p.delete != "" {
			t.Errorf("the plan changes a Pod that is terminating or does not exist: %+v", p)
		}
		return
	}
	checkNeeded(t, p, vm, pod)
}

// checkNeeded requires that a plan deletes a Pod if, and only if, the Pod is not needed.
func checkNeeded(t *testing.T, p plan, vm *v1alpha1.VirtualMachine, pod *corev1.Pod) {
	t.Helper()
	if p.resize && p.delete != "" {
		t.Errorf("the plan resizes and deletes the same Pod: %+v", p)
	}
	overdue := hasEnded(pod) && vm.Status.RetryTime != nil && !vm.Status.RetryTime.After(now)
	if needed := isActive(vm) && isLabelled(pod) && !overdue; needed == (p.delete != "") {
		t.Errorf("the Pod is needed: %t, but the plan is %+v", needed, p)
	}
}

// FuzzResources creates a Pod with any amounts that the schema accepts. After the API server has normalized them, the
// Pod must still have the resources of the spec. Otherwise the operator would resize it again and again.
func FuzzResources(f *testing.F) {
	f.Add("2", "4G", "40G")
	f.Add("0.0001", "1.5", "1m")
	f.Add("1P", "1E", "1e18")
	f.Add("1000000000000000", "1000000000000000000", "1E")
	f.Add("500m", "512Mi", "")
	f.Fuzz(func(t *testing.T, cpu, memory, disk string) {
		vm := aMachine()
		if !parseQuantity(cpu, "1P", &vm.Spec.Resource.CPU) || !parseQuantity(memory, "1E", &vm.Spec.Resource.Memory) {
			t.Skip("the schema rejects the quantities")
		}
		if rootDisk := (&resource.Quantity{}); parseQuantity(disk, "1E", rootDisk) {
			vm.Spec.Resource.RootDisk = rootDisk
		}
		text, err := json.Marshal(newPod(vm, "image"))
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(text, pod); err != nil {
			t.Fatal(err)
		}
		if !hasResources(pod, vm) {
			t.Errorf("the spec has %v, but the Pod has %v", vm.Spec.Resource, pod.Spec.Containers[0].Resources)
		}
		for name, quantity := range pod.Spec.Containers[0].Resources.Limits {
			if quantity.Sign() <= 0 {
				t.Errorf("%s of the Pod is %s, want more than 0", name, &quantity)
			}
		}
		if used := percent(&vm.Spec.Resource.CPU, &vm.Spec.Resource.Memory); used < 0 {
			t.Errorf("%s is %d %% of %s, want at least 0", cpu, used, memory)
		}
	})
}

var longExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)

// parseQuantity parses a quantity, and reports whether the schema accepts it.
func parseQuantity(text, most string, into *resource.Quantity) bool {
	if len(text) > 64 || longExponent.MatchString(text) {
		return false
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() <= 0 || quantity.Cmp(resource.MustParse(most)) > 0 {
		return false
	}
	*into = quantity
	return true
}

// FuzzStatus computes the status from random messages of the kubelet, the scheduler and the API server. The status must
// be valid. If only time passes, it must not change, except that the operator can reset status.failures.
func FuzzStatus(f *testing.F) {
	f.Add("", true, "", "", "", int64(1))
	f.Add("pu", true, "Unschedulable", "0/3 nodes are available.", "", int64(60))
	f.Add("pw", true, "Err ImagePull!", "because", "", int64(1))
	f.Add("", true, "", "", "pods \"m-vm\" is forbidden: exceeded quota: q", int64(5))
	f.Add("peg", false, "Evicted", "The node was low on memory.", "", int64(0))
	f.Add("pw", true, strings.Repeat("X", 1025), strings.Repeat("a kubelet that talks too much ", 2000), "", int64(10))
	f.Fuzz(func(t *testing.T, text string, active bool, reason, message, rejection string, later int64) {
		vm, pod := aMachine(), spell(text)
		if !active {
			inactive(vm)
		}
		if pod != nil {
			setMessages(pod, reason, message)
		}
		var done outcome
		if rejection != "" {
			done = outcome{createErr: forbidden("%s", rejection), resizeErr: errors.New(rejection)}
		}
		vm.Status = newStatus(vm, pod, done, usage{}, now)
		again := newStatus(vm, pod, done, usage{}, now.Add(time.Duration(max(later, 0)%60)*time.Second))
		forgiven := vm.Status.Failures != again.Failures
		if !reflect.DeepEqual(vm.Status, again) && !forgiven {
			t.Errorf("the status changes without a cause:\n%s", cmp.Diff(vm.Status, again))
		}
		checkStatus(t, vm)
	})
}

// setMessages sets all reasons and messages of a Pod.
func setMessages(pod *corev1.Pod, reason, message string) {
	pod.Status.Reason, pod.Status.Message = reason, message
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].Reason, pod.Status.Conditions[i].Message = reason, message
	}
	for i := range pod.Status.ContainerStatuses {
		if waiting := pod.Status.ContainerStatuses[i].State.Waiting; waiting != nil {
			waiting.Reason, waiting.Message = reason, message
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
}

func checkStatus(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	status := vm.Status
	if errs := validation.ValidateConditions(status.Conditions, field.NewPath("status")); len(errs) > 0 {
		t.Error(errs)
	}
	phases := []v1alpha1.Phase{v1alpha1.PhaseCreating, v1alpha1.PhaseActive, v1alpha1.PhaseFailed, v1alpha1.PhaseStopped, v1alpha1.PhaseTerminating}
	if !slices.Contains(phases, status.Phase) {
		t.Errorf("got unknown phase %q", status.Phase)
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Reason != status.Reason || ready.Message != status.Message {
		t.Errorf("got reason %s and message %s, but condition Ready %v", status.Reason, status.Message, ready)
	}
	if is := ready != nil && ready.Status == metav1.ConditionTrue; is && status.Phase != v1alpha1.PhaseActive {
		t.Errorf("the VirtualMachine is ready in phase %s", status.Phase)
	}
}
