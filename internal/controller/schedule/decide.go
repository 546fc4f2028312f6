// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/schedule"
)

// plan is what to do about a Deployment.
type plan struct {
	transition transition
	outcome    outcome
	due        time.Time       // when the start or stop was due
	fired      bool            // it became due by time; false if an edit or a new record made it count
	replicas   int32           // the replicas afterwards
	record     schedule.Record // the annotations afterwards
	next       time.Time       // when the next start or stop is due; zero for never
}

// transition is the change that an event of the schedule requires.
type transition string

const (
	start   transition = "start"
	stop    transition = "stop"
	removal transition = "remove" // the schedule is gone, so the operator restores the replicas from before the stop
)

// outcome is the result of a transition.
type outcome string

const (
	nothing   outcome = ""                // it was handled before, or has to wait: nothing is written
	noted     outcome = "noted"           // a new schedule without an event so far
	scaled    outcome = "scaled"          // the replicas change
	unchanged outcome = "unchanged"       // the replicas are right already, or the right number is not known
	suspended outcome = "suspended"       // the transition is skipped
	failed    outcome = patch.ResultError // the API server rejects the change
)

// decide returns what the last event of a schedule means for a Deployment. Each event is handled once. A stop that an
// autoscaler would undo waits.
func decide(d *appsv1.Deployment, s *schedule.Schedule, autoscaled bool, now time.Time) plan {
	record := schedule.ReadRecord(d.Annotations)
	last, next, isStop := s.Events(now)
	p := plan{transition: start, due: last.At, replicas: replicas(d), record: record, next: next}
	if isStop {
		p.transition = stop
	}
	edited := record.Observed != s.Observed
	handled := record.Handled(now)
	skipped := s.Suspended || last.At.Before(s.SuspendUntil)
	if !edited && !last.At.After(handled) || isStop && autoscaled && !skipped {
		return p
	}
	p.fired = !edited && !handled.IsZero()
	p.record.Last, p.record.Next, p.record.Observed = last.At, next, s.Observed
	switch {
	case last.At.IsZero():
		p.outcome = noted
	case skipped:
		p.outcome = suspended
	case isStop:
		p.stop(s.StopReplicas, edited)
	default:
		p.start(cmp.Or(s.StartReplicas, record.Original))
	}
	return p
}

// stop scales down and records the replicas. After an edit, an earlier stop may have scaled down already. Then the
// record keeps the higher number.
func (p *plan) stop(target int32, edited bool) {
	p.outcome, p.record.State = unchanged, v1beta1.ScheduleStopped
	if p.replicas <= target {
		return
	}
	if !edited || p.replicas > p.record.Original {
		p.record.Original = p.replicas
	}
	p.outcome, p.replicas = scaled, target
}

// start scales up and removes the number that a stop has recorded. A target of zero means that the number is not known.
func (p *plan) start(target int32) {
	p.outcome, p.record.State, p.record.Original = unchanged, v1beta1.ScheduleStarted, 0
	if p.replicas < target {
		p.outcome, p.replicas = scaled, target
	}
}

// remove undoes a stop and removes the record.
func remove(d *appsv1.Deployment) plan {
	p := plan{transition: removal, replicas: replicas(d)}
	p.start(schedule.ReadRecord(d.Annotations).Original)
	p.record = schedule.Record{}
	return p
}

// apply changes a Deployment as planned.
func (p *plan) apply(d *appsv1.Deployment) {
	if p.outcome == scaled {
		d.Spec.Replicas = new(p.replicas)
	}
	p.record.Write(d.Annotations)
}

// attempt describes the change that failed.
func (p *plan) attempt(d *appsv1.Deployment) string {
	if p.outcome != scaled {
		return "Could not record when the next start or stop is due"
	}
	return fmt.Sprintf("Could not scale from %d to %d replicas", replicas(d), p.replicas)
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// leftAlone reports whether a Deployment must not be scaled: it is being deleted, its rollout is paused, or it has a
// controller that decides about its replicas.
func leftAlone(d *appsv1.Deployment) bool {
	return !d.DeletionTimestamp.IsZero() || d.Spec.Paused || metav1.GetControllerOfNoCopy(d) != nil
}
