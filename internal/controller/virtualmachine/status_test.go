// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"container.training/useless/api/cloudnative/v1alpha1"
)

func forbidden(format string, args ...any) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "m-vm", fmt.Errorf(format, args...))
}

func unschedulable(pod *corev1.Pod) {
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no node",
	})
}

func TestSummarize(t *testing.T) {
	type result struct {
		Phase  v1alpha1.Phase
		Reason string
	}
	cases := map[string]struct {
		reason  string
		vm      *v1alpha1.VirtualMachine
		pod     *corev1.Pod
		refused error
		want    result
	}{
		"New":             {reason: "an active VirtualMachine without a Pod is in phase Creating", vm: aMachine(), want: result{"Creating", "Creating"}},
		"Pending":         {reason: "a Pod without a status is starting", vm: aMachine(), pod: aPod(), want: result{"Creating", "Starting"}},
		"Unschedulable":   {reason: "an unschedulable Pod has not failed: a node can be added", vm: aMachine(), pod: aPod(unschedulable), want: result{"Creating", "Unschedulable"}},
		"Pulling":         {reason: "a container that is being created has not failed", vm: aMachine(), pod: aPod(waitingFor("ContainerCreating")), want: result{"Creating", "Starting"}},
		"Unready":         {reason: "a running Pod that is not ready is starting", vm: aMachine(), pod: aPod(running), want: result{"Creating", "Starting"}},
		"Active":          {reason: "a running and ready Pod is active", vm: aMachine(), pod: aPod(readyFor(time.Minute)), want: result{"Active", "ServerReady"}},
		"ImagePull":       {reason: "a container that waits because of an error has failed", vm: aMachine(), pod: aPod(waitingFor("ErrImagePull")), want: result{"Failed", "ErrImagePull"}},
		"CrashLoop":       {reason: "a crashing Pod has failed, even if its condition Ready is True", vm: aMachine(), pod: aPod(readyFor(time.Minute), waitingFor("CrashLoopBackOff")), want: result{"Failed", "CrashLoopBackOff"}},
		"Unknown":         {reason: "an unknown reason of the kubelet is an error", vm: aMachine(), pod: aPod(waitingFor("SomethingNew")), want: result{"Failed", "SomethingNew"}},
		"NoReason":        {reason: "an invalid reason is replaced", vm: aMachine(), pod: aPod(waitingFor("something, new")), want: result{"Failed", "ServerFailed"}},
		"Evicted":         {reason: "an evicted Pod has failed", vm: aMachine(), pod: aPod(evicted), want: result{"Failed", "Evicted"}},
		"EvictedReady":    {reason: "an evicted Pod has failed, even if its condition Ready is True", vm: aMachine(), pod: aPod(readyFor(time.Minute), evicted), want: result{"Failed", "Evicted"}},
		"Conflict":        {reason: "a name conflict is a failure", vm: aMachine(), refused: fmt.Errorf("pod m-vm %w", errNameConflict), want: result{"Failed", "NameConflict"}},
		"Quota":           {reason: "an exceeded quota is not a failure: it can be raised", vm: aMachine(), refused: forbidden("exceeded quota: q"), want: result{"Creating", "QuotaExceeded"}},
		"Refused":         {reason: "a rejection is not a failure: the policy can change", vm: aMachine(), refused: forbidden("violates PodSecurity"), want: result{"Creating", "CreateFailed"}},
		"Replacing":       {reason: "a terminating Pod is not active", vm: aMachine(), pod: aPod(readyFor(time.Minute), terminating), want: result{"Creating", "Replacing"}},
		"Stopped":         {reason: "an inactive VirtualMachine without a Pod is stopped", vm: aMachine(inactive), want: result{"Stopped", "Stopped"}},
		"Stopping":        {reason: "an inactive VirtualMachine with a Pod is not stopped yet", vm: aMachine(inactive), pod: aPod(readyFor(time.Minute), terminating), want: result{"Active", "Stopping"}},
		"StoppingPending": {reason: "a Pod that never ran is being stopped", vm: aMachine(inactive), pod: aPod(), want: result{"Creating", "Stopping"}},
		"StoppingFailed":  {reason: "a failed Pod is being stopped", vm: aMachine(inactive), pod: aPod(evicted), want: result{"Failed", "Stopping"}},
		"Deleted":         {reason: "a deleted VirtualMachine is terminating", vm: aMachine(deleted), pod: aPod(evicted, terminating), want: result{"Terminating", "Terminating"}},
		"DeletedInactive": {reason: "a deleted and inactive VirtualMachine is terminating", vm: aMachine(inactive, deleted), want: result{"Terminating", "Terminating"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			status := newStatus(c.vm, c.pod, outcome{createErr: c.refused}, usage{}, now)
			if diff := cmp.Diff(c.want, result{status.Phase, status.Reason}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
			if ready.Reason != status.Reason || ready.Message != status.Message || status.Message == "" ||
				(ready.Status == metav1.ConditionTrue) != (status.Reason == v1alpha1.ReasonServerReady) {
				t.Errorf("the condition Ready %+[2]v contradicts the status %+[1]v", status, ready)
			}
			// A status that changes without a cause would cause an endless series of writes.
			c.vm.Status = status
			if again := newStatus(c.vm, c.pod, outcome{createErr: c.refused}, usage{}, now.Add(time.Second)); !reflect.DeepEqual(status, again) {
				t.Errorf("the status changes after a second:\n%s", cmp.Diff(status, again))
			}
		})
	}
}

func TestConditions(t *testing.T) {
	bigger := aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Spec.Resource.CPU = resource.MustParse("8") })
	with := func(conditionType corev1.PodConditionType, reason string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: conditionType, Status: corev1.ConditionTrue, Reason: reason})
		}
	}
	requested := func(pod *corev1.Pod) { setResources(pod, bigger) }
	measured := usage{isKnown: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 1}}
	cases := map[string]struct {
		reason  string
		vm      *v1alpha1.VirtualMachine // nil for aMachine
		pod     *corev1.Pod
		refused error
		used    usage
		want    map[string]string
	}{
		"NoServer": {
			reason: "without a Pod, no condition holds", used: measured,
			want: map[string]string{"Scheduled": "False/NoServer", "Resizing": "False/NoServer", "UsageAvailable": "False/NoServer"},
		},
		"Pending": {
			reason: "before the scheduler has decided, the condition is Unknown", pod: aPod(), used: measured,
			want: map[string]string{"Scheduled": "Unknown/Pending", "Resizing": "False/UpToDate", "UsageAvailable": "False/NoServer"},
		},
		"Unschedulable": {
			reason: "the condition has the scheduler's reason", pod: aPod(unschedulable),
			want: map[string]string{"Scheduled": "False/Unschedulable", "Resizing": "False/UpToDate", "UsageAvailable": "False/NoServer"},
		},
		"Running": {
			reason: "a running Pod is scheduled and measured", pod: aPod(readyFor(time.Minute)), used: measured,
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "False/UpToDate", "UsageAvailable": "True/Measured"},
		},
		"NotMeasured": {
			reason: "a new Pod is not measured yet", pod: aPod(running), used: usage{isKnown: true, available: true},
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "False/UpToDate", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"NoMetricsAPI": {
			reason: "without a metrics API, the usage is unknown", pod: aPod(running), used: usage{isKnown: true},
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "False/UpToDate", "UsageAvailable": "Unknown/MetricsAPIUnavailable"},
		},
		"ResizeRequested": {
			reason: "the node has not reported on the resize yet", vm: bigger, pod: aPod(running, requested),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/Requested", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"ResizeOfEnded": {
			reason: "a failed Pod is not resized: the Pod that replaces it gets the new resources", vm: bigger, pod: aPod(readyFor(time.Minute), evicted),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/Requested", "UsageAvailable": "False/NoServer"},
		},
		"ResizeDeferred": {
			reason: "the condition has the node's reason", vm: bigger, pod: aPod(running, requested, with(corev1.PodResizePending, "Deferred")),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/Deferred", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"ResizeInProgress": {
			reason: "without a reason of the node, the reason is InProgress", vm: bigger, pod: aPod(running, requested, with(corev1.PodResizeInProgress, "")),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/InProgress", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"ResizeRefused": {
			reason: "a resize that the API server rejects has the reason ResizeRefused", vm: bigger, pod: aPod(running), refused: forbidden("exceeded quota: q"),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/ResizeRefused", "UsageAvailable": "Unknown/NotMeasured"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.vm == nil {
				c.vm = aMachine()
			}
			status := newStatus(c.vm, c.pod, outcome{resizeErr: c.refused}, c.used, now)
			got := map[string]string{}
			for _, condition := range status.Conditions {
				got[condition.Type] = fmt.Sprintf("%s/%s", condition.Status, condition.Reason)
			}
			delete(got, v1alpha1.ConditionReady)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if measured := status.Server != nil && status.Server.Usage != nil; measured != (got[v1alpha1.ConditionUsageAvailable] == "True/Measured") {
				t.Errorf("got server %+v", status.Server)
			}
		})
	}
}

// TestStableMessage lets the API server reject a Pod three times. The messages differ, because they contain the usage
// of a quota. The status must keep the first message until the spec changes.
func TestStableMessage(t *testing.T) {
	vm := aMachine()
	for used := range 3 {
		vm.Status = newStatus(vm, nil, outcome{createErr: forbidden("exceeded quota: q, used: cpu=%d", used)}, usage{}, now)
		if !strings.Contains(vm.Status.Message, "used: cpu=0") {
			t.Errorf("the message changes with each attempt: %s", vm.Status.Message)
		}
	}
	vm.Generation++
	vm.Status = newStatus(vm, nil, outcome{createErr: forbidden("exceeded quota: q, used: cpu=9")}, usage{}, now)
	if !strings.Contains(vm.Status.Message, "used: cpu=9") {
		t.Errorf("the message is about an older generation: %s", vm.Status.Message)
	}
}

// TestUsageIsKept simulates a restart of the operator. Before its first request to the metrics API, the new process
// must keep the usage that the previous process wrote.
func TestUsageIsKept(t *testing.T) {
	vm, pod := aMachine(), aPod(readyFor(time.Minute))
	measured := usage{isKnown: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 12, Memory: 34}}
	vm.Status = newStatus(vm, pod, outcome{}, measured, now)
	if got := newStatus(vm, pod, outcome{}, usage{}, now); !reflect.DeepEqual(vm.Status, got) {
		t.Errorf("the usage changes before the first request:\n%s", cmp.Diff(vm.Status, got))
	}
	vm.Status = newStatus(vm, pod, outcome{}, usage{isKnown: true}, now)
	if got := newStatus(vm, pod, outcome{}, usage{}, now); !reflect.DeepEqual(vm.Status, got) {
		t.Errorf("the condition changes before the first request:\n%s", cmp.Diff(vm.Status, got))
	}
	vm.Status = newStatus(vm, pod, outcome{}, measured, now)
	pod.UID = "other"
	if got := newStatus(vm, pod, outcome{}, usage{}, now); got.Server.Usage != nil || got.Server.StartTime == vm.Status.Server.StartTime {
		t.Errorf("a new Pod has the usage or the start time of the previous Pod: %+v", got.Server)
	}
}

func TestLongMessages(t *testing.T) {
	long := strings.Repeat("é", 20000)
	status := newStatus(aMachine(), nil, outcome{createErr: errors.New(long)}, usage{}, now)
	if len(status.Message) > 1100 || !strings.HasSuffix(status.Message, "é…") {
		t.Errorf("got a message of %d bytes that ends with %q", len(status.Message), status.Message[len(status.Message)-10:])
	}
}

func TestKnownToCrash(t *testing.T) {
	for _, again := range []struct {
		reason string
		pod    types.UID
		ready  time.Duration // how long the Pod is ready before it crashes again
		want   bool
	}{
		{"a Pod that is ready for a short time is still in the same crash loop", "pod", stableAfter - time.Second, true},
		{"a Pod that was ready for a long time is in a new crash loop", "pod", stableAfter, false},
		{"a new Pod is in a new crash loop", "other", time.Second, false},
	} {
		t.Run(again.reason, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(now)
			c, vm := &Controller{clock: clock}, aMachine()
			// becomes updates the status for a new state of the Pod. It reports whether there was already an event
			// about its crashes.
			becomes := func(pod *corev1.Pod) bool {
				before := vm.Status
				vm.Status = newStatus(vm, pod, outcome{}, usage{}, clock.Now())
				return c.knownToCrash(vm, before)
			}
			crashing, running := aPod(waitingFor(crashLoop)), aPod(readyFor(0))
			if becomes(aPod()) || becomes(crashing) {
				t.Error("the crash is known before the first event")
			}
			crashing.UID, running.UID = again.pod, again.pod
			becomes(running)
			clock.SetTime(now.Add(again.ready))
			becomes(aPod(func(pod *corev1.Pod) { pod.UID = again.pod })) // the container has exited, and does not wait yet
			if got := becomes(crashing); got != again.want {
				t.Errorf("known: got %t", got)
			}
		})
	}
}
