// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	reporter "container.training/useless/internal/events"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/schedule"
)

// maxEvents is the number of events that the page shows.
const maxEvents = 50

// item has the fields that all items of the page have. All times of items are in milliseconds since 1970.
type item struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type machineItem struct {
	item
	Ready    bool         `json:"ready"`
	Paused   bool         `json:"paused"`
	Message  string       `json:"message"`      // message of the condition Ready, or "new"
	Due      int64        `json:"due,omitzero"` // when the operator turns the next switch down
	Switches []switchItem `json:"switches"`
}

type switchItem struct {
	Name string `json:"name"`
	Up   bool   `json:"up"`
}

type workloadItem struct {
	item
	Kind       string `json:"kind"`
	State      string `json:"state"`    // started, stopped, overridden, suspended or invalid
	Schedule   string `json:"schedule"` // the annotations, or the problems of an invalid schedule
	Zone       string `json:"zone,omitempty"`
	Next       int64  `json:"next,omitzero"` // time of the next start or stop
	NextIsStop bool   `json:"nextIsStop,omitempty"`
	Week       week   `json:"week,omitzero"`
}

type eventItem struct {
	item
	Kind   string `json:"kind"`
	Time   int64  `json:"time"`
	Type   string `json:"type"`
	Reason string `json:"reason"`
	Note   string `json:"note"`
}

// week has the states of a schedule from three days before today until three days after today.
type week struct {
	Days  []int64 `json:"days"` // eight midnights in the time zone of the schedule
	Spans []span  `json:"spans"`
}

type span struct {
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	State string `json:"state"` // runs, stopped, changes or unknown
}

// finest is the minimum length of a span. If a schedule changes more often, it has a span with the state "changes"
// instead.
const finest = 30 * time.Minute

// state returns all items of the page by key.
func (p *Page) state(now time.Time) map[string]any {
	items, owned, defaults := map[string]any{}, map[types.UID][]switchItem{}, map[string]map[string]string{}
	for _, o := range p.stores[switches].List() {
		sw := o.(*v1beta1.Switch)
		if owner := metav1.GetControllerOfNoCopy(sw); owner != nil {
			owned[owner.UID] = append(owned[owner.UID], switchItem{sw.Name, sw.Spec.Position == v1beta1.PositionUp})
		}
	}
	for _, o := range p.stores[machines].List() {
		m := o.(*v1beta1.Machine)
		items["machine/"+m.Namespace+"/"+m.Name] = newMachineItem(m, owned[m.UID])
	}
	for _, o := range p.stores[namespaces].List() {
		ns := o.(*corev1.Namespace)
		defaults[ns.Name] = controller.DefaultsOf(ns.Name, ns.Annotations)
	}
	weeks := map[string]week{}
	for _, kind := range controller.Kinds() {
		if p.stores[kind] == nil {
			continue
		}
		for _, o := range p.stores[kind].List() {
			object := o.(client.Object).DeepCopyObject().(client.Object)
			w := controller.NewWorkload(kind, object, defaults[object.GetNamespace()], time.UTC, now)
			if w.State() != "" {
				key := "workload/" + object.GetNamespace() + "/" + object.GetName() + "/" + kind
				items[key] = p.newWorkloadItem(kind, object, w, now, weeks)
			}
		}
	}
	p.weeks = weeks
	for _, e := range p.newestEvents() {
		items["event/"+string(e.UID)] = newEventItem(e)
	}
	return items
}

func newMachineItem(m *v1beta1.Machine, owned []switchItem) machineItem {
	slices.SortFunc(owned, func(a, b switchItem) int { // switch-9 is before switch-10
		return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name))
	})
	out := machineItem{
		item: item{m.Namespace, m.Name}, Paused: pause.IsPaused(m), Message: "new", Due: milliseconds(NextFlip(m)),
		Switches: owned,
	}
	if c := meta.FindStatusCondition(m.Status.Conditions, v1beta1.ConditionReady); c != nil {
		out.Ready, out.Message = c.Status == metav1.ConditionTrue, c.Message
	}
	return out
}

// NextFlip returns when the operator turns the Machine's next switch down. It is zero if no switch is up. It uses the
// operator's rule for flips.
func NextFlip(m *v1beta1.Machine) time.Time {
	if m.Status.SeenAt == nil {
		return time.Time{}
	}
	seconds := func(n *int32) time.Duration {
		return time.Duration(ptr.Deref(n, v1beta1.DefaultFlipSeconds)) * time.Second
	}
	due := m.Status.SeenAt.Add(seconds(m.Spec.Flip.DelaySeconds))
	if last := m.Status.LastFlipTime; last != nil {
		if afterInterval := last.Add(seconds(m.Spec.Flip.IntervalSeconds)); afterInterval.After(due) {
			return afterInterval
		}
	}
	return due
}

// newWorkloadItem describes a workload with a schedule. It adds the week of the schedule to weeks.
func (p *Page) newWorkloadItem(
	kind string, o client.Object, w controller.Workload, now time.Time, weeks map[string]week,
) workloadItem {
	out := workloadItem{item: item{o.GetNamespace(), o.GetName()}, Kind: strings.TrimSuffix(kind, "s"), State: w.State()}
	s, problems := w.Parse()
	if s == nil {
		_, out.Schedule = schedule.Explain(problems)
		return out
	}
	annotations, _ := w.Annotations()
	var parts []string
	for _, key := range []string{
		v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation, v1beta1.StopAfterAnnotation,
		v1beta1.StartUntilAnnotation, v1beta1.ExcludeDatesAnnotation,
	} {
		if value, ok := annotations[key]; ok {
			_, name, _ := strings.Cut(key, "/")
			parts = append(parts, strings.TrimSuffix(name, "-schedule")+" "+value)
		}
	}
	out.Schedule, out.Zone = strings.Join(parts, ", "), s.Zone.String()
	next, isStop := nextEvent(s, s.Due(w.Record(), w.Running(s), now))
	out.Next, out.NextIsStop = milliseconds(next), isStop
	key := s.Observed + now.In(s.Zone).Format(time.DateOnly)
	if cached, ok := p.weeks[key]; ok {
		out.Week = cached
	} else {
		out.Week = newWeek(s, now)
	}
	weeks[key] = out.Week
	return out
}

// nextEvent returns the next start or stop; zero for none.
func nextEvent(s *schedule.Schedule, due schedule.Due) (at time.Time, isStop bool) {
	if due.ExpiresIntoStop && (due.Next.IsZero() || !due.Expiry.After(due.Next)) {
		return due.Expiry, true
	}
	if due.Next.IsZero() {
		return due.Next, false
	}
	_, _, isStop = s.Events(due.Next)
	return due.Next, isStop
}

func newWeek(s *schedule.Schedule, now time.Time) week {
	const days = 7
	local := now.In(s.Zone)
	midnight := func(day int) time.Time {
		return time.Date(local.Year(), local.Month(), local.Day()+day-days/2, 0, 0, 0, 0, s.Zone)
	}
	var w week
	for day := range days + 1 {
		w.Days = append(w.Days, midnight(day).UnixMilli())
	}
	end := midnight(days)
	for at := midnight(0); at.Before(end); {
		state, until := stateAt(s, at, end)
		if last := len(w.Spans) - 1; last >= 0 && w.Spans[last].State == state {
			w.Spans[last].To = until.UnixMilli()
		} else {
			w.Spans = append(w.Spans, span{at.UnixMilli(), until.UnixMilli(), state})
		}
		at = until
	}
	return w
}

// stateAt returns the state of the span that begins at a time, and the time when this span ends. The span does not
// continue after end.
func stateAt(s *schedule.Schedule, at, end time.Time) (state string, until time.Time) {
	last, next, isStop := s.Events(at)
	switch {
	case last.At.IsZero():
		state = "unknown"
	case isStop:
		state = "stopped"
	default:
		state = "runs"
	}
	if next.IsZero() || next.After(end) {
		return state, end
	}
	if next.Sub(at) < finest {
		return "changes", at.Add(min(finest, end.Sub(at)))
	}
	return state, next
}

// newestEvents returns the operator's newest events.
func (p *Page) newestEvents() []*eventsv1.Event {
	var all []*eventsv1.Event
	for _, o := range p.stores[events].List() {
		if e := o.(*eventsv1.Event); e.ReportingController == reporter.Reporter {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *eventsv1.Event) int {
		return cmp.Or(EventTime(b).Compare(EventTime(a)), strings.Compare(string(a.UID), string(b.UID)))
	})
	return all[:min(len(all), maxEvents)]
}

// EventTime returns when an event was last observed.
func EventTime(e *eventsv1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	return e.EventTime.Time
}

func newEventItem(e *eventsv1.Event) eventItem {
	return eventItem{
		item{e.Regarding.Namespace, e.Regarding.Name}, e.Regarding.Kind, milliseconds(EventTime(e)), e.Type, e.Reason, e.Note,
	}
}

// milliseconds returns a time in milliseconds since 1970, or 0 for the zero time.
func milliseconds(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMilli()
}
