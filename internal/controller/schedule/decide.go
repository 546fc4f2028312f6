// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/schedule"
)

// longestWait is the maximum time between two reconciles of a workload with a valid schedule. Without it, the operator
// would not notice when its clock is changed. If nothing has changed and no event is due, a reconcile sends no request.
const longestWait = 10 * time.Minute

// input is the data for a decision about one workload.
type input struct {
	object      client.Object
	autoscalers []autoscalingv2.HorizontalPodAutoscaler
	defaults    map[string]string // the annotations of the Namespace that belong to a schedule
	dryRun      bool              // the flag --schedule-dry-run is set
	lastDryRun  dryRunMemory      // the data in memory about the workload's last dry run
	dryRunEnd   time.Time         // the end of the last dry run by flag; zero for none
	zone        *time.Location    // the time zone of schedules without a time zone
	now         time.Time
}

// plan describes the next write to a workload, its events, and the time of the next reconcile.
type plan struct {
	transition  transition
	outcome     outcome
	event       schedule.Event    // the start or stop
	annotations map[string]string // the annotations of the schedule, which may come from the Namespace
	fired       bool              // the transition is due because of the time, not because of an edit by a user
	isDryRun    bool              // the plan is only announced
	isInvalid   bool              // the schedule is invalid, so the plan has only a warning
	before      int32             // the level (see kind) before the transition
	level       int32             // the level after the transition
	least       *int32            // the lower bound of the level after the transition; nil if it does not change
	until       time.Time         // replaces a duration in StartUntilAnnotation; zero for no change
	record      schedule.Record   // the operator's annotations after the transition
	warning     warning           // a problem of the schedule; zero for none
	notice      warning           // the stop that comes soon; zero for none
	wakeUp      time.Time         // when to reconcile next; zero means after the next change of the workload
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
	noted     outcome = "noted"           // only the record changes
	scaled    outcome = "scaled"          // the level changes
	unchanged outcome = "unchanged"       // the level is already right, or the right level is not known
	suspended outcome = "suspended"       // the transition is skipped, because the schedule is suspended
	dryRun    outcome = "dry-run"         // the level would change
	failed    outcome = patch.ResultError // the API server rejects the change
)

// decide returns the plan for a workload.
func (k *kind) decide(in input) plan {
	p := k.plan(in)
	if p.isDryRun = in.isDryRun(); !p.isDryRun {
		p.wakeUp = earlier(p.wakeUp, in.lastDryRun.forgottenAt(in.now))
		return p
	}
	if p.transition != "" && p.warning.reason != v1beta1.EventAutoscalerConflict {
		p.warning, p.notice = warning{}, warning{} // a dry run does not start or stop the workload
	}
	return p
}

// plan returns the plan for a workload. In a dry run, the plan continues from the simulated state. If the schedule is
// invalid, the operator waits until a user changes it.
func (k *kind) plan(in input) (p plan) {
	own := in.object.GetAnnotations()
	annotations, isDefault := k.effective(own, in.defaults)
	switch isUnscheduled := schedule.IsUnscheduled(annotations); {
	case isUnscheduled && in.hasRecord():
		p = k.remove(in)
	case !schedule.HasAny(annotations):
		return plan{}
	default:
		s, problems := k.parse(annotations, own, in.zone)
		if isDefault && len(schedule.ProblemsOfNamespace(in.defaults, in.zone)) > 0 {
			s, problems = nil, schedule.Own(problems, own)
		}
		if s == nil || isUnscheduled {
			return plan{warning: invalid(problems), isInvalid: !isUnscheduled}
		}
		p = k.decideSchedule(in, s)
	}
	if p.annotations = annotations; isDefault {
		for _, w := range []*warning{&p.warning, &p.notice} {
			if *w != (warning{}) {
				w.note += fmt.Sprintf(" (the schedule is the default of Namespace %s)", in.object.GetNamespace())
			}
		}
	}
	return p
}

// invalid returns a warning about problems of annotations; zero for none.
func invalid(problems []schedule.Problem) warning {
	if len(problems) == 0 {
		return warning{}
	}
	reason, note := schedule.Explain(problems)
	return warning{reason, "Parse", note}
}

func (in input) isDryRun() bool {
	return in.dryRun || schedule.IsDryRun(in.object.GetAnnotations()) || schedule.IsDryRun(in.defaults)
}

// effective returns the annotations of the schedule that applies to a workload, and whether they are the default of its
// Namespace. Kinds without replicas ignore the numbers of replicas in a default.
func (k *kind) effective(own, defaults map[string]string) (annotations map[string]string, isDefault bool) {
	if !k.takesDefaults {
		defaults = nil
	}
	annotations, isDefault = schedule.Effective(own, defaults)
	if isDefault && k.onOff {
		delete(annotations, v1beta1.StopReplicasAnnotation)
		delete(annotations, v1beta1.StartReplicasAnnotation)
	}
	return annotations, isDefault
}

// remove returns a plan that undoes a stop and removes the record.
func (k *kind) remove(in input) plan {
	level, record := in.current(k, 0)
	p := plan{transition: removal, before: level, level: level, record: record}
	p.raise(record.Original, k.leastOf(in.object))
	p.record = schedule.Record{}
	return p
}

// decideSchedule returns the plan for the last event of a schedule. Each event is handled once. If an autoscaler would
// undo a stop, the stop waits.
func (k *kind) decideSchedule(in input, s *schedule.Schedule) plan {
	level, record := in.current(k, k.stopLevel(s))
	p := plan{transition: start, before: level, level: level, record: record}
	due := s.Due(record, level > k.stopLevel(s), in.now)
	p.event, p.wakeUp = due.Event, wakeUp(due, in.now)
	if due.IsStop {
		p.transition = stop
	}
	note := conflict(s, in.autoscalers)
	if note != "" {
		p.warning = warning{v1beta1.EventAutoscalerConflict, "Stop", note}
	}
	skipped := in.skip(s, record, due)
	switch {
	case !due.IsDue || due.IsStop && note != "" && skipped == nothing:
		p.track(due)
		p.announceStop(s, due, in.now)
		p.warning = cmp.Or(p.warning, k.overridden(s, p, in.now))
	default:
		k.execute(&p, in, s, due, skipped)
		due = s.Due(p.record, p.level > k.stopLevel(s), in.now)
		p.wakeUp = wakeUp(due, in.now)
		// If ExpiresAt does not change, this plan must repeat the notice of the last plan. Otherwise, warn would forget
		// the notice, and emit it again with the next plan.
		if due.Expiry.Equal(record.ExpiresAt) {
			p.announceStop(s, due, in.now)
		}
	}
	return p
}

// isOfDryRun reports whether an event was due up to the end of the last dry run. If the previous plan was in a dry run,
// that dry run ends now. A dry run by flag does not count for a workload that was created after the end of the dry run.
func (in input) isOfDryRun(at time.Time) bool {
	created := in.object.GetCreationTimestamp()
	return in.lastDryRun.isRunning || !at.After(in.lastDryRun.end) ||
		!at.After(in.dryRunEnd) && !created.After(in.dryRunEnd)
}

// current returns the level and the record of the workload. A dry run does not write them, so in a dry run they come
// from memory. There are two exceptions. If a client has changed the record since the last plan, both come from the
// workload. If a client has stopped, started or scaled the workload since the last plan, the level comes from the
// workload. But scaling does not count while the dry run assumes that a running workload is stopped, because an
// autoscaler may scale the workload.
func (in input) current(k *kind, stopLevel int32) (level int32, record schedule.Record) {
	level, record = k.level(in.object), schedule.ReadRecord(in.object.GetAnnotations())
	last := in.lastDryRun.simulated
	if !in.isDryRun() || !last.is || !reflect.DeepEqual(record, last.stored) {
		return level, record // for example, kubectl useless sleep has changed the record
	}
	running := level > stopLevel
	if running == (last.actual > stopLevel) && (level == last.actual || running != (last.level > stopLevel)) {
		level = last.level
	}
	return level, last.record
}

// hasRecord reports whether the workload has a record of an earlier plan. In a dry run, a simulated record counts too.
func (in input) hasRecord() bool {
	return schedule.HasRecord(in.object.GetAnnotations()) ||
		in.isDryRun() && in.lastDryRun.simulated.record != (schedule.Record{})
}

// skip returns the outcome of an event that must be recorded but not executed. It returns the outcome "nothing" if the
// event must be executed.
func (in input) skip(s *schedule.Schedule, record schedule.Record, due schedule.Due) outcome {
	at := due.At
	if end := record.ExpiresAt; record.Last.IsZero() && end.After(at) && !end.After(in.now) {
		at = end // an uptime has ended, and the event is due again since then
	}
	switch {
	case !in.isDryRun() && !due.IsUptime && in.isOfDryRun(at):
		return noted // after a dry run, only later events are executed
	case !due.IsUptime && (s.Suspended || due.At.Before(s.SuspendUntil)):
		return suspended
	default:
		return nothing
	}
}

// track records RunningSince and ExpiresAt, if they have changed.
func (p *plan) track(due schedule.Due) {
	if p.record.RunningSince.Equal(due.Since) && p.record.ExpiresAt.Equal(due.Expiry) {
		return
	}
	p.outcome, p.record.RunningSince, p.record.ExpiresAt = noted, due.Since, due.Expiry
	if p.record.Next = due.Next; !due.IsUptime {
		p.record.Next = earlier(due.Next, due.Expiry)
	}
}

// earlier returns the earlier of two times. Zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// execute plans a start or a stop. The argument skipped is the result of skip. If it is not the outcome "nothing", the
// plan only records the start or stop, with this outcome.
func (k *kind) execute(p *plan, in input, s *schedule.Schedule, due schedule.Due, skipped outcome) {
	handled := p.record.Handled(in.now)
	p.fired = !due.IsEdited && !due.IsUptime && !handled.IsZero()
	p.record.Last, p.record.Observed = lastEvent(due, handled), s.Observed
	since := due.Since
	if !since.IsZero() && !due.Expiry.After(in.now) {
		since = in.now.Truncate(time.Second) // StopAfter has ended; without a stop, it counts from now
	}
	switch {
	case due.At.IsZero():
		p.outcome = noted
	case skipped != nothing:
		p.outcome = skipped
	case due.IsStop:
		p.lower(k.stopLevel(s), k.leastOf(in.object), due.IsEdited)
		since = time.Time{}
	default:
		p.raise(cmp.Or(s.StartReplicas, p.record.Original), k.leastOf(in.object))
		since = cmp.Or(since, in.now.Truncate(time.Second))
		if p.level <= k.stopLevel(s) {
			p.record.State, since = "", time.Time{} // the level before the stop is not known, so there is no start
		}
	}
	p.record.RunningSince, p.record.ExpiresAt = time.Time{}, time.Time{}
	if s.StopAfter > 0 && !since.IsZero() {
		p.record.RunningSince, p.record.ExpiresAt = since, since.Add(s.StopAfter)
	}
	p.record.Next = earlier(due.Next, p.record.ExpiresAt)
	if due.IsUptime {
		p.extend(due, s.StartFor > 0)
	}
}

// extend records an uptime on demand (StartUntilAnnotation). If isDuration is true, the end of the uptime replaces the
// duration in the annotation. The last event is removed from the record, so that the last regular event is due again
// after the uptime.
func (p *plan) extend(due schedule.Due, isDuration bool) {
	p.record.Last = time.Time{}
	p.record.Next, p.record.ExpiresAt = due.Next, due.Expiry
	if isDuration {
		p.until = due.Expiry
	}
}

// lastEvent returns the time to record for an event. If a user shortens StopAfter, its stop can be earlier than the
// last event that was handled. Then lastEvent returns the later time, so that the handled event is not due again.
func lastEvent(due schedule.Due, handled time.Time) time.Time {
	if due.Cause == v1beta1.StopAfterAnnotation && handled.After(due.At) {
		return handled
	}
	return due.At
}

// noticePeriod is how long before the end of StartUntil or StopAfter the operator emits the notice of the stop.
const noticePeriod = 15 * time.Minute

// announceStop sets the notice if the workload stops soon because of StartUntil or StopAfter. If an autoscaler would
// undo the stop, the stop waits, so there is no notice.
func (p *plan) announceStop(s *schedule.Schedule, due schedule.Due, now time.Time) {
	isSoon := !now.Before(due.Expiry.Add(-noticePeriod)) && s.StopsAtExpiry(p.record, due, now)
	if isSoon && p.warning.reason != v1beta1.EventAutoscalerConflict {
		p.notice = warning{v1beta1.EventStopsSoon, "Stop", fmt.Sprintf("The workload stops at %s: "+
			"to extend its uptime, change start-until or stop-after", schedule.FormatTime(due.Expiry))}
	}
}

// overridden returns a warning about a workload whose last start or stop was undone; zero for none.
func (k *kind) overridden(s *schedule.Schedule, p plan, now time.Time) warning {
	if s.Suspended || now.Before(s.SuspendUntil) || !k.isOverridden(s, p.record, p.level) {
		return warning{}
	}
	note := "The workload is stopped, although its schedule has started it"
	if p.record.State == v1beta1.ScheduleStopped {
		note = "The workload runs, although its schedule has stopped it"
	}
	return warning{v1beta1.EventScheduleOverridden, "Observe", note}
}

// isOverridden reports whether another client has undone the last start or stop. If the schedule has only StopAfter, it
// returns false, because users start and stop such a workload at any time.
func (k *kind) isOverridden(s *schedule.Schedule, record schedule.Record, level int32) bool {
	running, hasTimes := level > k.stopLevel(s), s.Start != nil || s.Stop != nil
	return hasTimes && (record.State == v1beta1.ScheduleStopped && running ||
		record.State == v1beta1.ScheduleStarted && !running)
}

// wakeUp returns the time of the next reconcile. It is the earliest of these times: the next regular event, the end of
// StartUntil or StopAfter, the notice before this end, and now plus longestWait.
func wakeUp(due schedule.Due, now time.Time) time.Time {
	earliest := now.Add(longestWait)
	for _, at := range []time.Time{due.Next, due.Expiry, due.Expiry.Add(-noticePeriod)} {
		if at.After(now) && at.Before(earliest) {
			earliest = at
		}
	}
	return earliest
}

// lower stops a workload: it lowers the level and records the previous level. If the schedule was edited, an earlier
// stop may already have lowered the level. Then the record contains the higher of the recorded level and the current
// level. The argument least is the lower bound of the workload; nil for none.
func (p *plan) lower(target int32, least *int32, edited bool) {
	p.outcome, p.record.State = unchanged, v1beta1.ScheduleStopped
	if p.level <= target {
		return
	}
	if !edited || p.level > p.record.Original {
		p.record.Original = p.level
		if least == nil || *least > target { // otherwise, an earlier stop may have lowered the bound
			p.record.Least = nil
		}
	}
	p.outcome, p.level = scaled, target
	if least != nil && *least > target { // a stop never raises the lower bound, because that could add replicas
		p.record.Least, p.least = cmp.Or(p.record.Least, least), &target
	}
}

// raise starts a workload: it raises the level to the target, and removes the original level from the record. The
// original level is the level before the stop. If it is not known, the target may be zero, and the level does not
// change. The argument current is the lower bound of the workload; nil for none.
func (p *plan) raise(target int32, current *int32) {
	before := p.level
	p.level = max(before, target)
	if least := p.record.Least; least != nil && current != nil && *current < min(*least, p.level) {
		p.least = new(min(*least, p.level)) // the stop has lowered the bound
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

// apply writes the changes of a plan into a workload.
func (k *kind) apply(o client.Object, p plan) {
	if p.outcome == scaled {
		k.setLevel(o, p.level)
		if k.setLeast != nil && p.least != nil {
			k.setLeast(o, *p.least)
		}
	}
	annotations := o.GetAnnotations()
	if annotations == nil { // the schedule comes from the Namespace
		annotations = map[string]string{}
		o.SetAnnotations(annotations)
	}
	p.record.Write(annotations, k.onOff)
	if !p.until.IsZero() {
		annotations[v1beta1.StartUntilAnnotation] = schedule.FormatTime(p.until)
	}
}
