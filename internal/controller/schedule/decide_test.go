// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"maps"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// now is a Friday, after the start and before the stop of the schedule office.
var now = at("2026-11-20 12:00")

// office is a schedule that starts at 7:00 and stops at 20:00, from Monday to Friday.
var office = map[string]string{v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00",
	v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00"}

func at(text string) time.Time {
	at, err := time.Parse("2006-01-02 15:04", text)
	if err != nil {
		panic(err)
	}
	return at
}

// newDeployment returns a Deployment with the schedule office.
func newDeployment(replicas int32, changes ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d", Annotations: maps.Clone(office)},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas},
	}
	for _, change := range changes {
		change(d)
	}
	return d
}

// with sets an annotation, or removes it if the value is empty.
func with(key, value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		if d.Annotations[key] = value; value == "" {
			delete(d.Annotations, key)
		}
	}
}

// observed sets the annotations that the operator writes when it has handled an event at the time last.
func observed(state, last string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		s, problems := schedule.Parse(d.Annotations, time.UTC)
		if len(problems) > 0 {
			panic(problems[0].String())
		}
		_, next, _ := s.Events(at(last))
		r := schedule.ReadRecord(d.Annotations)
		r.Last, r.Next, r.State, r.Observed = at(last), next, state, s.Observed
		r.Write(d.Annotations, false)
	}
}

func original(n int) func(*appsv1.Deployment) {
	return with(v1beta1.OriginalReplicasAnnotation, strconv.Itoa(n))
}

// decideAt returns the plan that the kind k makes for the workload o at the time now.
func decideAt(
	k *kind, o client.Object, autoscalers []autoscalingv2.HorizontalPodAutoscaler, now time.Time,
) plan {
	return k.decide(input{object: o, autoscalers: autoscalers, zone: time.UTC, now: now})
}

// summary has the fields of a plan that the tests compare. Due is Mon 00:00 if the plan has no event.
type summary struct {
	Transition transition
	Outcome    outcome
	Replicas   int32
	Original   int32
	Due, State string
	Fired      bool
}

func summarize(p plan) summary {
	if p.outcome == nothing {
		return summary{}
	}
	return summary{p.transition, p.outcome, p.level, p.record.Original, p.event.At.Format("Mon 15:04"), p.record.State,
		p.fired}
}

func TestDecide(t *testing.T) {
	cases := map[string]struct {
		reason     string
		deployment *appsv1.Deployment
		now        string
		warning    string // the reason of the warning; empty for none
		want       summary
	}{
		"New": {
			reason:     "the last event of a new schedule is executed at once",
			deployment: newDeployment(3),
			now:        "2026-11-20 21:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped},
		},
		"NewStarted": {
			reason:     "a start without a recorded number keeps the replicas",
			deployment: newDeployment(0),
			now:        "2026-11-20 12:00",
			want:       summary{Transition: start, Outcome: unchanged, Due: "Fri 07:00"},
		},
		"NewWithoutPastEvent": {
			reason: "if the schedule had no event for years, only the next event is recorded",
			deployment: newDeployment(3, with(v1beta1.StopScheduleAnnotation, ""),
				with(v1beta1.StartScheduleAnnotation, "0 0 1 1 *"),
				with(v1beta1.ExcludeDatesAnnotation, "2000-01-01/2026-12-31")),
			now:  "2026-11-20 12:00",
			want: summary{Transition: start, Outcome: noted, Replicas: 3, Due: "Mon 00:00"},
		},
		"Stop": {
			reason:     "a stop scales in and records the original replicas",
			deployment: newDeployment(3, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now:        "2026-11-20 20:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"NotEarly": {
			reason:     "a stop is not executed before its time",
			deployment: newDeployment(3, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now:        "2026-11-20 19:59",
		},
		"Start": {
			reason:     "a start restores the replicas from before the stop",
			deployment: newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now:        "2026-11-23 07:00",
			want: summary{Transition: start, Outcome: scaled, Replicas: 3, Due: "Mon 07:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"StartReplicas": {
			reason: "start-replicas takes precedence over the original replicas",
			deployment: newDeployment(0, original(3), with(v1beta1.StartReplicasAnnotation, "5"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now: "2026-11-23 07:00",
			want: summary{Transition: start, Outcome: scaled, Replicas: 5, Due: "Mon 07:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"StopReplicas": {
			reason: "a stop scales to stop-replicas",
			deployment: newDeployment(3, with(v1beta1.StopReplicasAnnotation, "1"),
				observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now: "2026-11-20 20:00",
			want: summary{Transition: stop, Outcome: scaled, Replicas: 1, Original: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"NeverUpOnStop": {
			reason: "a stop never scales out",
			deployment: newDeployment(1, with(v1beta1.StopReplicasAnnotation, "2"),
				observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now: "2026-11-20 20:00",
			want: summary{Transition: stop, Outcome: unchanged, Replicas: 1, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"NeverDownOnStart": {
			reason:     "a start never scales in",
			deployment: newDeployment(7, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now:        "2026-11-23 07:00",
			want: summary{Transition: start, Outcome: unchanged, Replicas: 7, Due: "Mon 07:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"ZeroByHand": {
			reason:     "a Deployment that a user scaled to 0 before the stop stays at 0",
			deployment: newDeployment(0, observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now:        "2026-11-23 07:00",
			want: summary{Transition: start, Outcome: unchanged, Due: "Mon 07:00",
				Fired: true},
		},
		"UpByHand": {
			reason:     "a Deployment that a user scaled out after the stop stays scaled out",
			deployment: newDeployment(2, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now:        "2026-11-22 12:00",
			warning:    v1beta1.EventScheduleOverridden,
		},
		"UpByHandWithTimer": {
			reason: "with stop-after and a schedule, a Deployment that a user scales out after the stop causes a warning",
			deployment: newDeployment(2, original(3), with(v1beta1.StopAfterAnnotation, "4h"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now:     "2026-11-22 12:00",
			warning: v1beta1.EventScheduleOverridden,
			want: summary{Transition: stop, Outcome: noted, Replicas: 2, Original: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped},
		},
		"UpByHandWithTimerOnly": {
			reason: "with stop-after only, a Deployment that a user starts causes no warning",
			deployment: newDeployment(2, original(3), with(v1beta1.StartScheduleAnnotation, ""),
				with(v1beta1.StopScheduleAnnotation, ""), with(v1beta1.StopAfterAnnotation, "4h"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now: "2026-11-22 12:00",
			want: summary{Transition: start, Outcome: noted, Replicas: 2, Original: 3, Due: "Mon 00:00",
				State: v1beta1.ScheduleStopped},
		},
		"UpByHandUntilStop": {
			reason: "the next stop records the number of replicas that a user set after the last stop",
			deployment: newDeployment(2, original(3), with(v1beta1.StopScheduleAnnotation, "20:00"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now: "2026-11-21 20:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 2, Due: "Sat 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"StopTwice": {
			reason: "a second stop keeps the original replicas",
			deployment: newDeployment(0, original(3), with(v1beta1.StopScheduleAnnotation, "20:00"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now: "2026-11-21 20:00",
			want: summary{Transition: stop, Outcome: unchanged, Original: 3, Due: "Sat 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"DefaultReplicas": {
			reason: "absent replicas mean 1 replica",
			deployment: newDeployment(0, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00"),
				func(d *appsv1.Deployment) { d.Spec.Replicas = nil }),
			now: "2026-11-20 20:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 1, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"EditedStop": {
			reason: "an edit that moves the last stop into the future undoes the stop",
			deployment: newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
				with(v1beta1.StopScheduleAnnotation, "Mon-Fri 22:00")),
			now: "2026-11-20 21:00",
			want: summary{Transition: start, Outcome: scaled, Replicas: 3, Due: "Fri 07:00",
				State: v1beta1.ScheduleStarted},
		},
		"EditedStopReplicas": {
			reason: "if stop-replicas changes, the replicas that the stop left running are not recorded as the original number",
			deployment: newDeployment(2, original(5), with(v1beta1.StopReplicasAnnotation, "2"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
				with(v1beta1.StopReplicasAnnotation, "0")),
			now: "2026-11-21 12:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 5, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped},
		},
		"EditedUpByHand": {
			reason: "an edit repeats the stop, and records the higher number of replicas that a user has set",
			deployment: newDeployment(8, original(5), with(v1beta1.StopReplicasAnnotation, "2"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
				with(v1beta1.ExcludeDatesAnnotation, "2026-12-25")),
			now: "2026-11-21 12:00",
			want: summary{Transition: stop, Outcome: scaled, Replicas: 2, Original: 8, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped},
		},
		"EditedText": {
			reason: "the same schedule in another notation is not an edit",
			deployment: newDeployment(2, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
				with(v1beta1.StopScheduleAnnotation, " 0  20 * * 1,2,3,4,5"), with(v1beta1.TimeZoneAnnotation, "UTC"),
				with(v1beta1.StopReplicasAnnotation, "0")),
			now:     "2026-11-20 21:00",
			warning: v1beta1.EventScheduleOverridden,
		},
		"Suspended": {
			reason: "a suspended schedule skips a stop",
			deployment: newDeployment(3, with(v1beta1.SuspendAnnotation, "true"),
				observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now: "2026-11-20 20:00",
			want: summary{Transition: stop, Outcome: suspended, Replicas: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"Resumed": {
			reason: "a skipped event is not executed after the suspension",
			deployment: newDeployment(3, with(v1beta1.SuspendAnnotation, "true"),
				observed(v1beta1.ScheduleStarted, "2026-11-20 20:00"),
				with(v1beta1.SuspendAnnotation, "")),
			now: "2026-11-20 21:00",
		},
		"SuspendedUntil": {
			reason: "an event before the end of the suspension is skipped, even if the reconcile is later",
			deployment: newDeployment(3, with(v1beta1.SuspendUntilAnnotation, "2026-11-20T20:00:01Z"),
				observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now: "2026-11-20 21:00",
			want: summary{Transition: stop, Outcome: suspended, Replicas: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"SuspendedUntilThen": {
			reason: "an event at the end of the suspension is executed",
			deployment: newDeployment(3, with(v1beta1.SuspendUntilAnnotation, "2026-11-20T21:00:00+01:00"),
				observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now: "2026-11-20 20:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"NewSuspended": {
			reason:     "a new schedule that is suspended is recorded and not executed",
			deployment: newDeployment(3, with(v1beta1.SuspendAnnotation, "true")),
			now:        "2026-11-20 21:00",
			want:       summary{Transition: stop, Outcome: suspended, Replicas: 3, Due: "Fri 20:00"},
		},
		"ExcludedStart": {
			reason: "a start on an excluded date is skipped",
			deployment: newDeployment(0, original(3), with(v1beta1.ExcludeDatesAnnotation, "2026-11-23"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now: "2026-11-23 12:00",
		},
		"ExcludedStop": {
			reason: "a stop on an excluded date is executed",
			deployment: newDeployment(3, with(v1beta1.ExcludeDatesAnnotation, "2026-11-16/2026-11-27"),
				observed(v1beta1.ScheduleStarted, "2026-11-13 07:00")),
			now: "2026-11-16 20:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 3, Due: "Mon 20:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"AfterExcluded": {
			reason: "the first start after the excluded dates is executed",
			deployment: newDeployment(0, original(3),
				with(v1beta1.ExcludeDatesAnnotation, "2026-11-23,2026-11-24/2026-11-25"),
				observed(v1beta1.ScheduleStopped, "2026-11-25 20:00")),
			now: "2026-11-26 07:00",
			want: summary{Transition: start, Outcome: scaled, Replicas: 3, Due: "Thu 07:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"LocalDate": {
			reason: "excluded dates are in the schedule's time zone",
			deployment: newDeployment(0, original(3), with(v1beta1.TimeZoneAnnotation, "Pacific/Auckland"),
				with(v1beta1.ExcludeDatesAnnotation, "2026-11-23"),
				observed(v1beta1.ScheduleStopped, "2026-11-20 07:00")),
			now: "2026-11-22 18:00", // Monday, 7 o'clock in Auckland
		},
		"Autoscaled": {
			reason:     "a stop waits while an autoscaler would undo it",
			deployment: newDeployment(3, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
			now:        "2026-11-20 20:00",
			warning:    v1beta1.EventAutoscalerConflict,
		},
		"AutoscaledStart": {
			reason:     "a start is executed even if an autoscaler would undo a stop",
			deployment: newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			now:        "2026-11-23 07:00",
			warning:    v1beta1.EventAutoscalerConflict,
			want: summary{Transition: start, Outcome: scaled, Replicas: 3, Due: "Mon 07:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"ClockSkew": {
			reason: "an event is not repeated if another leader, whose clock was slightly ahead, has executed it",
			deployment: newDeployment(2, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
				with(v1beta1.LastScheduleTimeAnnotation, "2026-11-20T12:00:10Z")),
			now:     "2026-11-20 12:00",
			warning: v1beta1.EventScheduleOverridden,
		},
		"LastTimeInTheFuture": {
			reason: "a last-schedule-time years in the future is ignored",
			deployment: newDeployment(3, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00"),
				with(v1beta1.LastScheduleTimeAnnotation, "2099-01-01T00:00:00Z")),
			now: "2026-11-20 20:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 3, Due: "Fri 20:00",
				State: v1beta1.ScheduleStopped},
		},
		"UnreadableRecord": {
			reason: "an invalid original-replicas or last-schedule-time is ignored",
			deployment: newDeployment(0, observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
				with(v1beta1.OriginalReplicasAnnotation, "many"),
				with(v1beta1.LastScheduleTimeAnnotation, "yesterday")),
			now:  "2026-11-23 07:00",
			want: summary{Transition: start, Outcome: unchanged, Due: "Mon 07:00"},
		},
		"SameTime": {
			reason: "if a start and a stop are at the same time, the start is executed",
			deployment: newDeployment(0, original(3), with(v1beta1.StartScheduleAnnotation, "0 7 1 * *"),
				with(v1beta1.StopScheduleAnnotation, "0 7 * * *"),
				observed(v1beta1.ScheduleStopped, "2026-11-30 07:00")),
			now: "2026-12-01 07:00",
			want: summary{Transition: start, Outcome: scaled, Replicas: 3, Due: "Tue 07:00",
				State: v1beta1.ScheduleStarted, Fired: true},
		},
		"SkippedTogether": {
			reason: "if a clock change skips a start and a stop, the later one is executed",
			deployment: newDeployment(3, with(v1beta1.StartScheduleAnnotation, "02:10"),
				with(v1beta1.StopScheduleAnnotation, "02:40"),
				with(v1beta1.TimeZoneAnnotation, "Europe/Berlin"),
				observed(v1beta1.ScheduleStarted, "2026-03-28 01:40")),
			now: "2026-03-29 01:00",
			want: summary{Transition: stop, Outcome: scaled, Original: 3, Due: "Sun 01:00",
				State: v1beta1.ScheduleStopped, Fired: true},
		},
		"ShownTwice": {
			reason: "if a clock change repeats an hour, an event in this hour is executed once",
			deployment: newDeployment(2, original(3), with(v1beta1.StopScheduleAnnotation, "02:30"),
				with(v1beta1.TimeZoneAnnotation, "Europe/Berlin"),
				observed(v1beta1.ScheduleStopped, "2026-10-25 00:30")),
			now:     "2026-10-25 01:30",
			warning: v1beta1.EventScheduleOverridden,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var autoscalers []autoscalingv2.HorizontalPodAutoscaler
			if c.warning == v1beta1.EventAutoscalerConflict {
				autoscalers = append(autoscalers, *newAutoscaler(atLeast(0)))
			}
			p := decideAt(deployments, c.deployment, autoscalers, at(c.now))
			if diff := cmp.Diff(c.warning, p.warning.reason); diff != "" {
				t.Errorf("%s: reason of the warning (-want +got):\n%s", c.reason, diff)
			}
			if diff := cmp.Diff(c.want, summarize(p)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if wait := p.wakeUp.Sub(at(c.now)); wait <= 0 || wait > longestWait {
				t.Errorf("the next reconcile is after %s, want more than 0 and at most %s", wait, longestWait)
			}
			before := c.deployment.DeepCopy()
			deployments.apply(c.deployment, p)
			if again := decideAt(deployments, c.deployment, autoscalers, at(c.now)); again.outcome != nothing {
				t.Errorf("the event is executed twice: %+v", summarize(again))
			}
			if diff := cmp.Diff(before, c.deployment); p.outcome == nothing && diff != "" {
				t.Errorf("the plan is empty, but apply changed the Deployment (-before +after):\n%s", diff)
			}
		})
	}
}

// TestDecideInvalid decides about an invalid schedule. The plan must contain only a warning, even if an earlier stop is
// recorded.
func TestDecideInvalid(t *testing.T) {
	d := newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
		with(v1beta1.StartScheduleAnnotation, "25:00"))
	got := decideAt(deployments, d, nil, at("2026-11-23 07:00"))
	note := `useless.container.training/start-schedule "25:00": 25:00 is not a time of day from 00:00 to 23:59; ` +
		`use for example "Mon-Fri 07:00", "07:00" or "0 7 * * 1-5"`
	if want := (plan{warning: warning{v1beta1.EventInvalidSchedule, "Parse", note}, isInvalid: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestStartKeepsRunningSince checks that a start keeps the recorded time running-since if it is one second in the
// future. The clock of the previous leader may have been ahead.
func TestStartKeepsRunningSince(t *testing.T) {
	const since = "2026-11-20T12:00:01Z"
	d := newDeployment(3, observed(v1beta1.ScheduleStopped, "2026-11-19 20:00"),
		with(v1beta1.StopAfterAnnotation, "4h"), with(v1beta1.RunningSinceAnnotation, since))
	p := decideAt(deployments, d, nil, at("2026-11-20 12:00"))
	if got := schedule.FormatTime(p.record.RunningSince); p.transition != start || got != since {
		t.Errorf("a %s at 12:00:00 records running-since %s, want a start and %s", p.transition, got, since)
	}
}

// TestStopsSoon decides at 12:00 about a workload that has been running since 07:50, and then follows it until 12:15.
// The test requires the event StopsSoon only if the end of stop-after or of an uptime (start-until) stops the workload
// by 12:15.
func TestStopsSoon(t *testing.T) {
	const startKey, stopKey, untilKey = v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation,
		v1beta1.SuspendUntilAnnotation
	const tenPast, justAfterNoon = "2026-11-20T12:10:00Z", "2026-11-20T12:00:01Z"
	stopAfter := map[string]string{v1beta1.StopAfterAnnotation: "4h20m"}
	uptime := map[string]string{v1beta1.StartUntilAnnotation: tenPast}
	type m = map[string]string
	for _, c := range []struct {
		reason         string
		base, changes  map[string]string // annotations in addition to office; an empty value removes the annotation
		want           bool
		stopped, cause string // when and why the workload stops; empty if it does not stop by 12:15
	}{
		{"stop-after ends", stopAfter, nil, true, "12:10", v1beta1.StopAfterAnnotation},
		{"stop-after ends in 16 minutes", nil, m{v1beta1.StopAfterAnnotation: "4h26m"}, false, "", ""},
		{"there are no regular stops", stopAfter, m{stopKey: ""}, true, "12:10", v1beta1.StopAfterAnnotation},
		{"a regular stop is first", stopAfter, m{stopKey: "12:05"}, false, "12:05", stopKey},
		{"a regular stop is at the same time", stopAfter, m{stopKey: "12:10"}, false, "12:10", stopKey},
		{"a regular start is at the same time", stopAfter, m{startKey: "12:10"}, false, "", ""},
		{"a regular start is first", stopAfter, m{startKey: "12:05"}, true, "12:10", v1beta1.StopAfterAnnotation},
		{"a start at the same time cancels the regular stop", stopAfter,
			m{startKey: "5 12 20 11 *", stopKey: "12:05"}, true, "12:10", v1beta1.StopAfterAnnotation},
		{"a start cancels the first of two regular stops", stopAfter,
			m{startKey: "5 12 20 11 *", stopKey: "5,7 12 * * *"}, false, "12:07", stopKey},
		{"the regular stop that is first is suspended", stopAfter, m{stopKey: "12:05", untilKey: tenPast},
			true, "12:10", v1beta1.StopAfterAnnotation},
		{"the stop is suspended", stopAfter, m{untilKey: "2026-11-20T12:10:01Z"}, false, "", ""},
		{"the schedule is suspended", stopAfter, m{v1beta1.SuspendAnnotation: "true"}, false, "", ""},

		{"the last regular event before the end of the uptime is a stop", uptime, m{stopKey: "11:00"}, true, "12:10", stopKey},
		{"the last regular event before the end of the uptime is a start", uptime, nil, false, "", ""},
		{"a regular stop is due during the uptime", uptime, m{stopKey: "12:05"}, true, "12:10", stopKey},
		{"a regular stop is due at the end of the uptime", uptime, m{stopKey: "12:10"}, true, "12:10", stopKey},
		{"the regular stop was before the end of the suspension", uptime,
			m{stopKey: "11:00", untilKey: justAfterNoon}, false, "", ""},
		{"the regular stop is after the end of the suspension", uptime,
			m{stopKey: "12:05", untilKey: justAfterNoon}, true, "12:10", stopKey},
		{"stop-after ends during the uptime", uptime, m{v1beta1.StopAfterAnnotation: "4h15m"}, true, "12:10",
			v1beta1.StopAfterAnnotation},
		{"stop-after ended during the suspension", uptime,
			m{v1beta1.StopAfterAnnotation: "4h9m", untilKey: justAfterNoon}, false, "", ""},
	} {
		t.Run(c.reason, func(t *testing.T) {
			d := newDeployment(3)
			maps.Copy(d.Annotations, c.base)
			for key, value := range c.changes {
				with(key, value)(d)
			}
			deployments.apply(d, decideAt(deployments, d, nil, at("2026-11-20 07:50"))) // records the schedule
			deployments.setLevel(d, 3)
			d.Annotations[v1beta1.RunningSinceAnnotation] = "2026-11-20T07:50:00Z"
			if p := decideAt(deployments, d, nil, now); p.outcome != nothing {
				deployments.apply(d, p)
			}
			got := decideAt(deployments, d, nil, now)
			if soon := got.notice.reason == v1beta1.EventStopsSoon; soon != c.want {
				t.Errorf("stops soon: %t, want %t; notice %+v", soon, c.want, got.notice)
			}
			stopped, cause := nextStop(d)
			if stopped != c.stopped || cause != c.cause {
				t.Errorf("the workload stops at %q because of %q, want %q and %q", stopped, cause, c.stopped, c.cause)
			}
		})
	}
}

// nextStop reconciles a running workload each minute from 12:01 to 12:15. It returns when and why the workload stops.
func nextStop(d *appsv1.Deployment) (clock, cause string) {
	for at := now.Add(time.Minute); at.Before(now.Add(16 * time.Minute)); at = at.Add(time.Minute) {
		p := decideAt(deployments, d, nil, at)
		if p.transition == stop && p.outcome == scaled {
			return at.Format("15:04"), p.event.Cause
		}
		if p.outcome != nothing {
			deployments.apply(d, p)
		}
	}
	return "", ""
}

func TestRemove(t *testing.T) {
	unannotated := func(d *appsv1.Deployment) {
		delete(d.Annotations, v1beta1.StartScheduleAnnotation)
		delete(d.Annotations, v1beta1.StopScheduleAnnotation)
	}
	for name, c := range map[string]struct {
		reason     string
		deployment *appsv1.Deployment
		want       int32
	}{
		"Stopped": {
			"removing the schedule restores the replicas from before the stop",
			newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"), unannotated), 3,
		},
		"Started": {
			"the replicas do not change if there was no stop",
			newDeployment(4, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00"), unannotated), 4,
		},
		"UpByHand": {
			"removing the schedule never scales in",
			newDeployment(5, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"), unannotated), 5,
		},
		"ZeroByHand": {
			"the replicas do not change if there is no recorded number",
			newDeployment(0, observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"), unannotated), 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := decideAt(deployments, c.deployment, nil, now)
			if p.transition != removal || !p.wakeUp.IsZero() {
				t.Errorf("%s: got %+v, want a removal and no further reconcile", c.reason, p)
			}
			deployments.apply(c.deployment, p)
			if got := deployments.level(c.deployment); got != c.want || p.level != c.want {
				t.Errorf("%s: got %d replicas, want %d", c.reason, got, c.want)
			}
			if diff := cmp.Diff(map[string]string{}, c.deployment.Annotations); diff != "" {
				t.Errorf("remaining annotations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLeaveAlone(t *testing.T) {
	for reason, c := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"no special state": {func(*appsv1.Deployment) {}, false},
		"being deleted": {func(d *appsv1.Deployment) { d.DeletionTimestamp = new(metav1.NewTime(now)) },
			true},
		"rollout paused": {func(d *appsv1.Deployment) { d.Spec.Paused = true }, true},
		"paused by annotation": {func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{v1beta1.PausedAnnotation: "true"}
		}, true},
		"controlled": {func(d *appsv1.Deployment) {
			d.OwnerReferences = []metav1.OwnerReference{{Controller: new(true)}}
		}, true},
		"owned but not controlled": {func(d *appsv1.Deployment) { d.OwnerReferences = []metav1.OwnerReference{{}} },
			false},
	} {
		if got := deployments.leaveAlone(newDeployment(1, c.change)); got != c.want {
			t.Errorf("%s: got %t, want %t", reason, got, c.want)
		}
	}
}

// follow reconciles at regular times, and calls the function look after each decision.
func follow(t *testing.T, d *appsv1.Deployment, from, to time.Time, every time.Duration,
	look func(at time.Time, p plan)) {
	t.Helper()
	for at := from; !at.After(to); at = at.Add(every) {
		p := decideAt(deployments, d, nil, at)
		if p.warning != (warning{}) {
			t.Fatal(p.warning)
		}
		if p.outcome != nothing {
			deployments.apply(d, p)
		}
		look(at, p)
	}
}

// TestKEDA4677StartsOnWeekdaysWithDailyStopsAreDownAllWeekend checks a schedule with starts from Monday to Friday and
// daily stops. KEDA keeps such a workload running all weekend, because KEDA considers only the next event.
func TestKEDA4677StartsOnWeekdaysWithDailyStopsAreDownAllWeekend(t *testing.T) {
	d := newDeployment(3, with(v1beta1.StartScheduleAnnotation, "30 6 * * 1-5"),
		with(v1beta1.StopScheduleAnnotation, "10 22 * * *"))
	follow(t, d, at("2026-11-16 06:30"), at("2026-12-14 06:20"), 10*time.Minute, func(now time.Time, _ plan) {
		clock, weekend := now.Format("15:04"), now.Weekday() == time.Saturday || now.Weekday() == time.Sunday
		want := int32(3)
		if weekend || clock < "06:30" || clock >= "22:10" {
			want = 0
		}
		if got := deployments.level(d); got != want {
			t.Fatalf("on %s there are %d replicas, want %d", now.Format("Monday 15:04"), got, want)
		}
	})
}

// TestKubeGreen246LateEventIsExecuted reconciles up to 59 hours after a start. The start must be executed. kube-green
// skips an event that is more than a minute late.
func TestKubeGreen246LateEventIsExecuted(t *testing.T) {
	for _, late := range []time.Duration{time.Second, 61 * time.Second, 3 * time.Hour, 59 * time.Hour} {
		// The stop is on Sundays, so that no stop is due in the 59 hours.
		d := newDeployment(0, original(3), with(v1beta1.StopScheduleAnnotation, "Sun 20:00"),
			observed(v1beta1.ScheduleStopped, "2026-11-15 20:00"))
		follow(t, d, at("2026-11-20 07:00").Add(late), at("2026-11-20 07:00").Add(late), time.Minute,
			func(_ time.Time, p plan) {
				if deployments.level(d) != 3 || !p.fired || p.event.At != at("2026-11-20 07:00") {
					t.Errorf("after %s there are %d replicas, want 3: %+v", late, deployments.level(d), summarize(p))
				}
			})
	}
}

// TestGoKubeDownscaler444NothingIsWrittenBetweenEvents reconciles every 30 seconds. GoKubeDownscaler writes to every
// workload each time.
func TestGoKubeDownscaler444NothingIsWrittenBetweenEvents(t *testing.T) {
	d := newDeployment(3, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00"))
	var written []string
	follow(t, d, at("2026-11-20 07:00"), at("2026-11-24 20:00"), 30*time.Second, func(now time.Time, p plan) {
		if p.outcome != nothing {
			written = append(written, now.Format("Mon 15:04:05"))
		}
	})
	want := []string{"Fri 20:00:00", "Mon 07:00:00", "Mon 20:00:00", "Tue 07:00:00", "Tue 20:00:00"}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}
