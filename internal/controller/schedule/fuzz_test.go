// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// oddZones are the time zones of the fuzz tests. Some have unusual offsets or clock changes.
var oddZones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca",
	"America/Sao_Paulo",
	"Asia/Kathmandu", "Antarctica/Troll", "Pacific/Kiritimati",
}

// century maps any number to an instant from 2000 to 2100.
func century(unix int64) time.Time {
	const length = 100 * 365 * 86400
	return time.Unix(946_684_800+(unix%length+length)%length, 0).UTC()
}

// FuzzDecide starts and stops a Deployment with a random record. Each event must be executed once. A stop must never
// add replicas. A start must never remove replicas. The removal of the schedule must restore the recorded replicas.
func FuzzDecide(f *testing.F) {
	f.Add(uint16(7*60), uint16(20*60), uint8(1), int32(3), int32(0), int32(0), int32(3), v1beta1.ScheduleStopped,
		"2026-11-20T07:00:00Z", int64(1_000_000_000), false)
	f.Add(uint16(2*60+30), uint16(3*60), uint8(2), int32(0), int32(0), int32(5), int32(0), v1beta1.ScheduleStarted, "",
		int64(763_000_000), false)
	f.Add(uint16(0), uint16(1), uint8(4), int32(9), int32(2), int32(4), int32(-1), "", "yesterday", int64(378_000_000),
		true)
	f.Fuzz(func(t *testing.T, starts, stops uint16, zone uint8, replicas, stopReplicas, startReplicas, original int32,
		state, last string, unix int64, autoscaled bool) {
		annotations := map[string]string{
			v1beta1.StartScheduleAnnotation: timeOfDay(starts), v1beta1.StopScheduleAnnotation: timeOfDay(stops),
			v1beta1.TimeZoneAnnotation:         oddZones[int(zone)%len(oddZones)],
			v1beta1.StopReplicasAnnotation:     strconv.Itoa(int(stopReplicas)),
			v1beta1.OriginalReplicasAnnotation: strconv.Itoa(int(original)),
			v1beta1.ScheduleStateAnnotation:    state, v1beta1.LastScheduleTimeAnnotation: last,
			v1beta1.ObservedScheduleAnnotation: state, "example.com/else": last,
		}
		if startReplicas != 0 {
			annotations[v1beta1.StartReplicasAnnotation] = strconv.Itoa(int(startReplicas))
		}
		s, problems := schedule.Parse(annotations, time.UTC)
		if len(problems) > 0 || replicas < 0 {
			t.Skip(problems)
		}
		var autoscalers []autoscalingv2.HorizontalPodAutoscaler
		if autoscaled {
			autoscalers = append(autoscalers, *newAutoscaler(atLeast(0)))
		}
		d, now := newDeployment(replicas), century(unix)
		d.Annotations = annotations
		for range 3 { // three events, alternating starts and stops
			before := *d.Spec.Replicas
			p := decideAt(deployments, d, autoscalers, now)
			checkPlan(t, p, before, now)
			if p.outcome != nothing {
				deployments.apply(d, p)
			}
			if again := decideAt(deployments, d, autoscalers, now); again.outcome != nothing {
				t.Errorf("the event is executed twice: %+v, then %+v", p, again)
			}
			if _, now, _ = s.Events(now); now.IsZero() {
				t.Fatalf("there is no next event: %+v", p)
			}
		}
		checkRemoval(t, d.DeepCopy().Annotations, *d.Spec.Replicas, last)
	})
}

// timeOfDay formats a number of minutes as a time of day.
func timeOfDay(minutes uint16) string {
	return fmt.Sprintf("%02d:%02d", minutes/60%24, minutes%60)
}

func checkPlan(t *testing.T, p plan, before int32, now time.Time) {
	t.Helper()
	if p.event.At.After(now) || !p.wakeUp.After(now) {
		t.Errorf("now is %s, but due is %s and the next reconcile is at %s", now, p.event.At, p.wakeUp)
	}
	checkReplicas(t, p, before)
}

func checkReplicas(t *testing.T, p plan, before int32) {
	t.Helper()
	if (p.outcome == scaled) != (p.level != before) {
		t.Errorf("outcome %s, but the replicas change from %d to %d", p.outcome, before, p.level)
	}
	recorded := p.record.Original
	if p.transition == stop && (p.level > before || p.outcome == scaled && recorded < before) {
		t.Errorf("a stop scales from %d to %d, and records %d", before, p.level, recorded)
	}
	if done := p.outcome == scaled || p.outcome == unchanged; p.transition == start &&
		(p.level < before || done && recorded != 0) {
		t.Errorf("a start scales from %d to %d, and still records %d", before, p.level, recorded)
	}
}

// checkRemoval removes the schedule. It checks that the original replicas are restored and that only the users'
// annotations remain.
func checkRemoval(t *testing.T, annotations map[string]string, replicas int32, foreign string) {
	t.Helper()
	d := newDeployment(replicas)
	d.Annotations = annotations
	want := max(replicas, schedule.ReadRecord(annotations).Original)
	delete(annotations, v1beta1.StartScheduleAnnotation)
	delete(annotations, v1beta1.StopScheduleAnnotation)
	p := decideAt(deployments, d, nil, century(0))
	deployments.apply(d, p)
	if *d.Spec.Replicas != want || schedule.HasRecord(d.Annotations) || d.Annotations["example.com/else"] != foreign {
		t.Errorf("after the removal there are %d replicas, want %d; annotations %v", *d.Spec.Replicas, want,
			d.Annotations)
	}
}
