// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/schedule"
)

// plan is what to do about a workload.
type plan struct {
	transition transition
	outcome    outcome
	due        time.Time       // when the start or stop was due
	fired      bool            // it became due by time; false if an edit or a new record made it count
	level      int32           // the level afterwards
	record     schedule.Record // the annotations afterwards
	next       time.Time       // when the next start or stop is due; zero for never
}

// transition is the change that an event of the schedule requires.
type transition string

const (
	start   transition = "start"
	stop    transition = "stop"
	removal transition = "remove" // the schedule is gone, so the operator restores the level from before the stop
)

// outcome is the result of a transition.
type outcome string

const (
	nothing   outcome = ""                // it was handled before, or has to wait: nothing is written
	noted     outcome = "noted"           // a new schedule without an event so far
	scaled    outcome = "scaled"          // the level changes
	unchanged outcome = "unchanged"       // the level is right already, or the right one is not known
	suspended outcome = "suspended"       // the transition is skipped
	failed    outcome = patch.ResultError // the API server rejects the change
)

// decide returns what the last event of a schedule means for a workload. Each event is handled once. A stop that an
// autoscaler would undo waits.
func (k *kind) decide(o client.Object, s *schedule.Schedule, autoscaled bool, now time.Time) plan {
	record := schedule.ReadRecord(o.GetAnnotations())
	last, next, isStop := s.Events(now)
	p := plan{transition: start, due: last.At, level: k.level(o), record: record, next: next}
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

// stop lowers the level and records the one before. After an edit, an earlier stop may have lowered it already. Then the record
// keeps the higher one.
func (p *plan) stop(target int32, edited bool) {
	p.outcome, p.record.State = unchanged, v1beta1.ScheduleStopped
	if p.level <= target {
		return
	}
	if !edited || p.level > p.record.Original {
		p.record.Original = p.level
	}
	p.outcome, p.level = scaled, target
}

// start raises the level and removes the one that a stop has recorded. A target of zero means that it is not known.
func (p *plan) start(target int32) {
	p.outcome, p.record.State, p.record.Original = unchanged, v1beta1.ScheduleStarted, 0
	if p.level < target {
		p.outcome, p.level = scaled, target
	}
}

// remove undoes a stop and removes the record.
func (k *kind) remove(o client.Object) plan {
	p := plan{transition: removal, level: k.level(o)}
	p.start(schedule.ReadRecord(o.GetAnnotations()).Original)
	p.record = schedule.Record{}
	return p
}

// apply changes a workload as planned.
func (k *kind) apply(o client.Object, p plan) {
	if p.outcome == scaled {
		k.setLevel(o, p.level)
	}
	p.record.Write(o.GetAnnotations(), k.onOff)
}
