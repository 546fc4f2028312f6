// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/schedule"
)

// longestWait is the maximum time between two reconciles, so that the operator notices when its clock is changed. A
// reconcile without a due event sends no request.
const longestWait = 10 * time.Minute

// plan is what to do about a workload.
type plan struct {
	transition transition
	outcome    outcome
	due        time.Time       // when the start or stop was due
	fired      bool            // time has caused the transition, and not a new or edited schedule
	level      int32           // the level (see kind) after the transition
	least      *int32          // the lower bound of the level after the transition; nil if it does not change
	record     schedule.Record // the annotations after the transition
	warning    warning         // an event for the user; zero for none
	wakeUp     time.Time       // when to reconcile next; zero means after the next change of the workload
}

// warning is the content of a Warning event.
type warning struct{ reason, action, note string }

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
	nothing   outcome = ""                // the event was handled before, or must wait: nothing is written
	noted     outcome = "noted"           // a new schedule without a past event
	scaled    outcome = "scaled"          // the level changes
	unchanged outcome = "unchanged"       // the level is already right, or the right level is not known
	suspended outcome = "suspended"       // the transition is skipped
	failed    outcome = patch.ResultError // the API server rejects the change
)

// decide returns what to do about a workload. If the schedule is invalid, the operator waits until a user changes it.
func (k *kind) decide(
	o client.Object, autoscalers []autoscalingv2.HorizontalPodAutoscaler, zone *time.Location, now time.Time,
) plan {
	annotations := o.GetAnnotations()
	if schedule.IsUnscheduled(annotations) && schedule.HasRecord(annotations) {
		return k.remove(o)
	}
	s, problems := k.parse(o, zone)
	if len(problems) > 0 {
		reason, note := schedule.Explain(problems)
		return plan{warning: warning{reason, "Parse", note}}
	}
	note := conflict(s, autoscalers)
	p := k.decideEvent(o, s, note != "", now)
	if note != "" {
		p.warning = warning{v1beta1.EventAutoscalerConflict, "Stop", note}
	}
	return p
}

// remove undoes a stop and removes the record.
func (k *kind) remove(o client.Object) plan {
	p := plan{transition: removal, level: k.level(o), record: schedule.ReadRecord(o.GetAnnotations())}
	p.raise(p.record.Original, k.leastOf(o))
	p.record = schedule.Record{}
	return p
}

// decideEvent returns the plan for the last event of a schedule. Each event is handled once. If an autoscaler would
// undo a stop, the stop waits.
func (k *kind) decideEvent(o client.Object, s *schedule.Schedule, autoscaled bool, now time.Time) plan {
	record := schedule.ReadRecord(o.GetAnnotations())
	last, next, isStop := s.Events(now)
	p := plan{transition: start, due: last.At, level: k.level(o), record: record, wakeUp: wakeUp(next, now)}
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
		p.lower(k.stopLevel(s), k.leastOf(o), edited)
	default:
		p.raise(cmp.Or(s.StartReplicas, record.Original), k.leastOf(o))
	}
	return p
}

// wakeUp returns when to reconcile next: at the next event, or after longestWait if that is earlier. A zero next means
// that there is no event.
func wakeUp(next, now time.Time) time.Time {
	latest := now.Add(longestWait)
	if next.IsZero() || next.After(latest) {
		return latest
	}
	return next
}

// lower stops a workload: it lowers the level and records the previous level. If the schedule was edited, an earlier
// stop may already have lowered the level. Then the record keeps the higher level: the recorded one or the present one.
func (p *plan) lower(target int32, least *int32, edited bool) {
	p.outcome, p.record.State = unchanged, v1beta1.ScheduleStopped
	if p.level <= target {
		return
	}
	if !edited || p.level > p.record.Original {
		p.record.Original, p.record.Least = p.level, nil
	}
	p.outcome, p.level = scaled, target
	if least != nil && *least > target { // a stop never raises the lower bound, because that could add replicas
		p.record.Least, p.least = cmp.Or(p.record.Least, least), &target
	}
}

// raise starts a workload: it raises the level and removes the recorded level from before the stop. A target of zero
// means that the level from before the stop is not known. The current lower bound is nil if there is none.
func (p *plan) raise(target int32, current *int32) {
	before := p.level
	p.level = max(before, target)
	if least := p.record.Least; least != nil && current != nil && *current < min(*least, p.level) {
		p.least = new(min(*least, p.level)) // the stop had lowered it
	}
	p.outcome, p.record.State, p.record.Original, p.record.Least = unchanged, v1beta1.ScheduleStarted, 0, nil
	if p.level > before || p.least != nil {
		p.outcome = scaled
	}
}

// stopLevel returns the level after a stop.
func (k *kind) stopLevel(s *schedule.Schedule) int32 {
	if k.onOff {
		return 0
	}
	return s.StopReplicas
}

// leastOf returns the lower bound of the level, or nil if there is none.
func (k *kind) leastOf(o client.Object) *int32 {
	if k.least == nil {
		return nil
	}
	return k.least(o)
}

// apply changes a workload as planned.
func (k *kind) apply(o client.Object, p plan) {
	if p.outcome == scaled {
		k.setLevel(o, p.level)
		if k.setLeast != nil && p.least != nil {
			k.setLeast(o, *p.least)
		}
	}
	p.record.Write(o.GetAnnotations(), k.onOff)
}
