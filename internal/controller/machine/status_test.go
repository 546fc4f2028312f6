// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"container.training/useless/api/useless/v1beta1"
)

func TestNewStatus(t *testing.T) {
	resource := schema.GroupResource{Group: v1beta1.GroupVersion.Group, Resource: "switches"}
	overQuota := errors.Join(nil,
		apierrors.NewForbidden(resource, "m-1", errors.New("exceeded quota: few, requested: 1")))

	condition := func(conditionType string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{
			Type: conditionType, Status: status, Reason: reason, Message: message,
			ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(now),
		}
	}
	atRest := []metav1.Condition{
		condition("Scaled", "True", "CountReached", "1 of 1 switches"),
		condition("Resting", "True", "AllDown", "All switches are down"),
		condition("Ready", "True", "Useless", "All switches exist and are down"),
	}
	cases := map[string]struct {
		reason   string
		machine  *v1beta1.Machine
		switches []*v1beta1.Switch
		lastFlip time.Time
		done     outcome
		want     v1beta1.MachineStatus
	}{
		"AtRest": {
			reason:   "a Machine with the desired number of switches, all down, is ready",
			machine:  newMachine(1, position(v1beta1.PositionDown, "")),
			switches: []*v1beta1.Switch{newTestSwitch("m-0")},
			want: v1beta1.MachineStatus{
				Switches: v1beta1.SwitchCounts{Total: 1, Down: 1}, Positions: "d", Position: "down", Conditions: atRest,
			},
		},
		"Up": {
			reason:  "the status has the earliest seenAt and the last flip",
			machine: newMachine(3, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Second)),
				newTestSwitch("m-1", flipped(time.Minute)), newTestSwitch("m-2", seen(2*time.Second))},
			lastFlip: now.Add(-time.Minute),
			want: v1beta1.MachineStatus{
				Switches: v1beta1.SwitchCounts{Total: 3, Up: 2, Down: 1}, Positions: "udu",
				SeenAt: ago(2 * time.Second), LastFlipTime: ago(time.Minute),
				Conditions: []metav1.Condition{
					condition("Scaled", "True", "CountReached", "3 of 3 switches"),
					condition("Resting", "False", "SwitchesUp", "2 of 3 switches are up"),
					condition("Ready", "False", "SwitchesUp", "Switches are up"),
				},
			},
		},
		"FlippedNow": {
			reason:   "lastFlipTime is the time when the API server confirmed the flip, because the next interval begins then",
			machine:  newMachine(1, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", flipped(time.Second))},
			lastFlip: now.Add(time.Nanosecond),
			want: v1beta1.MachineStatus{
				Switches: v1beta1.SwitchCounts{Total: 1, Down: 1}, Positions: "d", Conditions: atRest,
				LastFlipTime: new(metav1.NewMicroTime(now.Add(time.Microsecond))),
			},
		},
		"NotCarriedOut": {
			reason:   "the status does not report a position that the switches do not have yet",
			machine:  newMachine(1, position(v1beta1.PositionUp, v1beta1.PositionDown)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0")},
			want: v1beta1.MachineStatus{
				Switches: v1beta1.SwitchCounts{Total: 1, Down: 1}, Positions: "d", Position: "down", Conditions: atRest,
			},
		},
		"Quota": {
			reason:   "an exceeded quota has its own reason",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0")},
			done:     outcome{scaling: overQuota},
			want: v1beta1.MachineStatus{
				Switches: v1beta1.SwitchCounts{Total: 1, Down: 1}, Positions: "d",
				Conditions: []metav1.Condition{
					condition("Scaled", "False", "QuotaExceeded", "1 of 2 switches: a ResourceQuota rejects further switches"),
					condition("Resting", "True", "AllDown", "All switches are down"),
					condition("Ready", "False", "NotScaled", "1 of 2 switches: a ResourceQuota rejects further switches"),
				},
			},
		},
		"Refused": {
			reason:  "any other error is in the message",
			machine: newMachine(1),
			done:    outcome{scaling: errors.New("create switches: no")},
			want: v1beta1.MachineStatus{
				Conditions: []metav1.Condition{
					condition("Scaled", "False", "ScalingFailed", "0 of 1 switches: create switches: no"),
					condition("Resting", "True", "AllDown", "All switches are down"),
					condition("Ready", "False", "NotScaled", "0 of 1 switches: create switches: no"),
				},
			},
		},
		"Conflict": {
			reason:  "a conflict is retried and not reported",
			machine: newMachine(1),
			done:    outcome{scaling: apierrors.NewConflict(resource, "m-0", errors.New("changed"))},
			want: v1beta1.MachineStatus{
				Conditions: []metav1.Condition{
					condition("Scaled", "False", "Scaling", "0 of 1 switches"),
					condition("Resting", "True", "AllDown", "All switches are down"),
					condition("Ready", "False", "NotScaled", "0 of 1 switches"),
				},
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.want.ObservedGeneration, c.want.Selector = 1, "machine=m"
			got := newStatus(c.machine, planOf(t, c.machine, c.switches, c.lastFlip), c.done, now)
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// planOf returns a plan without writes.
func planOf(t *testing.T, m *v1beta1.Machine, switches []*v1beta1.Switch, lastFlip time.Time) plan {
	t.Helper()
	selector, err := m.SwitchSelector()
	if err != nil {
		t.Fatal(err)
	}
	return plan{selector: selector, mine: switches, lastFlip: lastFlip}
}

// TestUrgentPlanKeepsFailure checks the condition Scaled after an urgent plan. Such a plan creates no Switches, so it
// must keep the message of an earlier failure.
func TestUrgentPlanKeepsFailure(t *testing.T) {
	const quota = "1 of 2 switches: a ResourceQuota rejects further switches"
	for _, c := range []struct {
		reason     string
		before     string // the reason of the condition Scaled
		generation int64  // the observedGeneration of this condition
		done       outcome
		switches   int    // how many exist
		want       string // the message of the condition
	}{
		{"the quota still rejects Switches", v1beta1.ReasonQuotaExceeded, 1, outcome{urgent: true}, 1, quota},
		{"another error still prevents the creation", v1beta1.ReasonScalingFailed, 1, outcome{urgent: true}, 1, quota},
		{"a user has deleted a Switch meanwhile", v1beta1.ReasonQuotaExceeded, 1, outcome{urgent: true}, 0, "0 of 2 switches"},
		{"there was no error", v1beta1.ReasonScaling, 1, outcome{urgent: true}, 1, "1 of 2 switches"},
		{"the spec has changed", v1beta1.ReasonQuotaExceeded, 0, outcome{urgent: true}, 1, "1 of 2 switches"},
		{"a plan that was not urgent had no error", v1beta1.ReasonQuotaExceeded, 1, outcome{}, 1, "1 of 2 switches"},
	} {
		m, switches := newMachine(2), []*v1beta1.Switch{newTestSwitch("m-0")}[:c.switches]
		m.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionScaled, Status: metav1.ConditionFalse, Reason: c.before, Message: quota, ObservedGeneration: c.generation,
		}}
		status := newStatus(m, planOf(t, m, switches, time.Time{}), c.done, now)
		if got := status.Conditions[0].Message; got != c.want {
			t.Errorf("%s: got the message %q, want %q", c.reason, got, c.want)
		}
	}
}

// TestNewStatusIsStable checks that the status does not change with time, or with the text of a repeated error.
func TestNewStatusIsStable(t *testing.T) {
	m := newMachine(2)
	switches := []*v1beta1.Switch{newTestSwitch("m-0", flipped(time.Second)), newTestSwitch("m-1", seen(time.Second))}
	p, done := planOf(t, m, switches, now.Add(-time.Second)), outcome{scaling: errors.New("connection 1 was reset")}
	m.Status = newStatus(m, p, done, now)
	before := m.Status.DeepCopy()
	done.scaling = errors.New("connection 2 was reset")
	again := newStatus(m, p, done, now.Add(time.Hour))
	if diff := cmp.Diff(*before, again); diff != "" {
		t.Errorf("the status changed without a reason (-want +got):\n%s", diff)
	}
}

func TestMicroTimeNeverRoundsDown(t *testing.T) {
	for nanoseconds, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Microsecond, 999: time.Microsecond, 1000: time.Microsecond, 1001: 2 * time.Microsecond,
	} {
		if got := microTime(now.Add(nanoseconds)).Sub(now); got != want {
			t.Errorf("%s becomes %s, want %s", nanoseconds, got, want)
		}
	}
}
