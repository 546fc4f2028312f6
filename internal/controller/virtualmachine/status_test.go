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
		"New":             {reason: "what is not there yet is being created", vm: aMachine(), want: result{"Creating", "Creating"}},
		"Pending":         {reason: "a Pod that nobody has looked at is starting", vm: aMachine(), pod: aPod(), want: result{"Creating", "Starting"}},
		"Unschedulable":   {reason: "no node is no failure: one may come", vm: aMachine(), pod: aPod(unschedulable), want: result{"Creating", "Unschedulable"}},
		"Pulling":         {reason: "a container that is being created is none either", vm: aMachine(), pod: aPod(waitingFor("ContainerCreating")), want: result{"Creating", "Starting"}},
		"Unready":         {reason: "to run is not to be ready", vm: aMachine(), pod: aPod(running), want: result{"Creating", "Starting"}},
		"Active":          {reason: "a server that runs and is ready is active", vm: aMachine(), pod: aPod(readyFor(time.Minute)), want: result{"Active", "ServerReady"}},
		"ImagePull":       {reason: "what a container waits for has failed", vm: aMachine(), pod: aPod(waitingFor("ErrImagePull")), want: result{"Failed", "ErrImagePull"}},
		"CrashLoop":       {reason: "also where the Pod is said to be ready", vm: aMachine(), pod: aPod(readyFor(time.Minute), waitingFor("CrashLoopBackOff")), want: result{"Failed", "CrashLoopBackOff"}},
		"Unknown":         {reason: "also where a kubelet has a reason of its own", vm: aMachine(), pod: aPod(waitingFor("SomethingNew")), want: result{"Failed", "SomethingNew"}},
		"NoReason":        {reason: "a reason has to be a word", vm: aMachine(), pod: aPod(waitingFor("something, new")), want: result{"Failed", "ServerFailed"}},
		"Evicted":         {reason: "a Pod that is over has failed", vm: aMachine(), pod: aPod(evicted), want: result{"Failed", "Evicted"}},
		"EvictedReady":    {reason: "whatever its conditions say", vm: aMachine(), pod: aPod(readyFor(time.Minute), evicted), want: result{"Failed", "Evicted"}},
		"Conflict":        {reason: "a name that is taken is a failure", vm: aMachine(), refused: fmt.Errorf("pod m-vm %w", errNameConflict), want: result{"Failed", "NameConflict"}},
		"Quota":           {reason: "a quota may be raised", vm: aMachine(), refused: forbidden("exceeded quota: q"), want: result{"Creating", "QuotaExceeded"}},
		"Refused":         {reason: "a policy may be changed", vm: aMachine(), refused: forbidden("violates PodSecurity"), want: result{"Creating", "CreateFailed"}},
		"Replacing":       {reason: "one that goes is not active, though it runs", vm: aMachine(), pod: aPod(readyFor(time.Minute), going), want: result{"Creating", "Replacing"}},
		"Stopped":         {reason: "an inactive one has stopped when its server is gone", vm: aMachine(inactive), want: result{"Stopped", "Stopped"}},
		"Stopping":        {reason: "and not before", vm: aMachine(inactive), pod: aPod(readyFor(time.Minute), going), want: result{"Active", "Stopping"}},
		"StoppingPending": {reason: "also where the server never ran", vm: aMachine(inactive), pod: aPod(), want: result{"Creating", "Stopping"}},
		"StoppingFailed":  {reason: "also where it has failed", vm: aMachine(inactive), pod: aPod(evicted), want: result{"Failed", "Stopping"}},
		"Deleted":         {reason: "one that is being deleted is nothing else", vm: aMachine(deleted), pod: aPod(evicted, going), want: result{"Terminating", "Terminating"}},
		"DeletedInactive": {reason: "also where it is inactive", vm: aMachine(inactive, deleted), want: result{"Terminating", "Terminating"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			status := newStatus(c.vm, c.pod, outcome{creating: c.refused}, usage{}, now)
			if diff := cmp.Diff(c.want, result{status.Phase, status.Reason}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
			if ready.Reason != status.Reason || ready.Message != status.Message || status.Message == "" ||
				(ready.Status == metav1.ConditionTrue) != (status.Reason == v1alpha1.ReasonServerReady) {
				t.Errorf("the status %+v and its condition %+v do not agree", status, ready)
			}
			// The same again is no change: each write would be the cause of the next.
			c.vm.Status = status
			if again := newStatus(c.vm, c.pod, outcome{creating: c.refused}, usage{}, now.Add(time.Second)); !reflect.DeepEqual(status, again) {
				t.Errorf("a second later it is something else:\n%s", cmp.Diff(status, again))
			}
		})
	}
}

func TestConditions(t *testing.T) {
	bigger := aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Spec.Resource.CPU = resource.MustParse("8") })
	says := func(conditionType corev1.PodConditionType, reason string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: conditionType, Status: corev1.ConditionTrue, Reason: reason})
		}
	}
	requested := func(pod *corev1.Pod) { setResources(pod, bigger) }
	measured := usage{asked: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 1}}
	cases := map[string]struct {
		reason  string
		vm      *v1alpha1.VirtualMachine // the usual one if nil
		pod     *corev1.Pod
		refused error
		used    usage
		want    map[string]string
	}{
		"NoServer": {
			reason: "of no server there is nothing to say", used: measured,
			want: map[string]string{"Scheduled": "False/NoServer", "Resizing": "False/NoServer", "UsageAvailable": "False/NoServer"},
		},
		"Pending": {
			reason: "what is not decided is unknown", pod: aPod(), used: measured,
			want: map[string]string{"Scheduled": "Unknown/Pending", "Resizing": "False/UpToDate", "UsageAvailable": "False/NoServer"},
		},
		"Unschedulable": {
			reason: "the scheduler's reason is the condition's", pod: aPod(unschedulable),
			want: map[string]string{"Scheduled": "False/Unschedulable", "Resizing": "False/UpToDate", "UsageAvailable": "False/NoServer"},
		},
		"Running": {
			reason: "a server that runs has all of them", pod: aPod(readyFor(time.Minute)), used: measured,
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "False/UpToDate", "UsageAvailable": "True/Measured"},
		},
		"NotMeasured": {
			reason: "a new server was not measured", pod: aPod(running), used: usage{asked: true, available: true},
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "False/UpToDate", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"NoMetricsAPI": {
			reason: "without a metrics API nothing is known", pod: aPod(running), used: usage{asked: true},
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "False/UpToDate", "UsageAvailable": "Unknown/MetricsAPIUnavailable"},
		},
		"ResizeRequested": {
			reason: "before the node has said anything it has not been done", vm: bigger, pod: aPod(running, requested),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/Requested", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"ResizeOfEnded": {
			reason: "one that has ended is not resized, but replaced", vm: bigger, pod: aPod(readyFor(time.Minute), evicted),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/Requested", "UsageAvailable": "False/NoServer"},
		},
		"ResizeDeferred": {
			reason: "the node's reason is the condition's", vm: bigger, pod: aPod(running, requested, says(corev1.PodResizePending, "Deferred")),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/Deferred", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"ResizeInProgress": {
			reason: "which it need not have", vm: bigger, pod: aPod(running, requested, says(corev1.PodResizeInProgress, "")),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/InProgress", "UsageAvailable": "Unknown/NotMeasured"},
		},
		"ResizeRefused": {
			reason: "what is refused has not been done", vm: bigger, pod: aPod(running), refused: forbidden("exceeded quota: q"),
			want: map[string]string{"Scheduled": "True/Scheduled", "Resizing": "True/ResizeRefused", "UsageAvailable": "Unknown/NotMeasured"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.vm == nil {
				c.vm = aMachine()
			}
			status := newStatus(c.vm, c.pod, outcome{resizing: c.refused}, c.used, now)
			got := map[string]string{}
			for _, condition := range status.Conditions {
				got[condition.Type] = fmt.Sprintf("%s/%s", condition.Status, condition.Reason)
			}
			delete(got, v1alpha1.ConditionReady)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if measured := status.Server != nil && status.Server.Usage != nil; measured != (got[v1alpha1.ConditionUsageAvailable] == "True/Measured") {
				t.Errorf("the server is %+v", status.Server)
			}
		})
	}
}

// TestSameRefusal has what the API server says of a quota: it counts what others use, too.
func TestSameRefusal(t *testing.T) {
	vm := aMachine()
	for used := range 3 {
		vm.Status = newStatus(vm, nil, outcome{creating: forbidden("exceeded quota: q, used: cpu=%d", used)}, usage{}, now)
		if !strings.Contains(vm.Status.Message, "used: cpu=0") {
			t.Errorf("the message changes with every try: %s", vm.Status.Message)
		}
	}
	vm.Generation++
	vm.Status = newStatus(vm, nil, outcome{creating: forbidden("exceeded quota: q, used: cpu=9")}, usage{}, now)
	if !strings.Contains(vm.Status.Message, "used: cpu=9") {
		t.Errorf("the message is that of another spec: %s", vm.Status.Message)
	}
}

// TestUsageIsKept is about an operator that has just started: what the one before has measured is not known any worse.
func TestUsageIsKept(t *testing.T) {
	vm, pod := aMachine(), aPod(readyFor(time.Minute))
	measured := usage{asked: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 12, Memory: 34}}
	vm.Status = newStatus(vm, pod, outcome{}, measured, now)
	if got := newStatus(vm, pod, outcome{}, usage{}, now); !reflect.DeepEqual(vm.Status, got) {
		t.Errorf("the status changes before anything was asked:\n%s", cmp.Diff(vm.Status, got))
	}
	vm.Status = newStatus(vm, pod, outcome{}, usage{asked: true}, now)
	if got := newStatus(vm, pod, outcome{}, usage{}, now); !reflect.DeepEqual(vm.Status, got) {
		t.Errorf("that there is no metrics API is forgotten before it was asked:\n%s", cmp.Diff(vm.Status, got))
	}
	vm.Status = newStatus(vm, pod, outcome{}, measured, now)
	pod.UID = "other"
	if got := newStatus(vm, pod, outcome{}, usage{}, now); got.Server.Usage != nil || got.Server.StartTime == vm.Status.Server.StartTime {
		t.Errorf("another server has what the one before had: %+v", got.Server)
	}
}

func TestLongMessages(t *testing.T) {
	long := strings.Repeat("é", 20000)
	status := newStatus(aMachine(), nil, outcome{creating: errors.New(long)}, usage{}, now)
	if len(status.Message) > 1100 || !strings.HasSuffix(status.Message, "é…") {
		t.Errorf("the message has %d bytes and ends with %q", len(status.Message), status.Message[len(status.Message)-10:])
	}
}

func TestKnownToCrash(t *testing.T) {
	for _, again := range []struct {
		reason string
		server types.UID
		ready  time.Duration // before it crashed again
		want   bool
	}{
		{"a loop is one matter, however often it runs in between", "pod", forgiving - time.Second, true},
		{"a server that was steady crashes for another reason", "pod", forgiving, false},
		{"another server is another matter", "other", time.Second, false},
	} {
		t.Run(again.reason, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(now)
			c, vm := &Controller{clock: clock}, aMachine()
			// becomes gives the VirtualMachine the status that follows from its Pod, and returns whether a crash is known.
			becomes := func(pod *corev1.Pod) bool {
				before := vm.Status
				vm.Status = newStatus(vm, pod, outcome{}, usage{}, clock.Now())
				return c.knownToCrash(vm, before)
			}
			crashing, running := aPod(waitingFor(crashLoop)), aPod(readyFor(0))
			if becomes(aPod()) || becomes(crashing) {
				t.Error("it is known before it was told")
			}
			crashing.UID, running.UID = again.server, again.server
			becomes(running)
			clock.SetTime(now.Add(again.ready))
			becomes(aPod(func(pod *corev1.Pod) { pod.UID = again.server })) // it has ended, and nothing says yet that it loops
			if got := becomes(crashing); got != again.want {
				t.Errorf("known: %v", got)
			}
		})
	}
}
