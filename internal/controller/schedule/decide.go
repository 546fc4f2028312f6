// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/internal/object"
)

// A plan is what to do about a Deployment.
type plan struct {
	transition transition
	outcome    outcome
	due        time.Time // the instant of the start or stop that it is about
	fired      bool      // that has come since the last one was dealt with; it does not just count because of an edit
	replicas   int32     // how many there are to be
	record     record    // what is to be remembered
	next       time.Time // when the next start or stop comes; zero if none does
}

// A transition is what an event asks for.
type transition string

const (
	start   transition = "start"
	stop    transition = "stop"
	removal transition = "remove" // of the schedule, which takes back a stop
)

// An outcome is what becomes of a transition.
type outcome string

const (
	nothing   outcome = ""                 // it was dealt with before, or has to wait: nothing is written
	noted     outcome = "noted"            // there is none yet, but a new schedule
	scaled    outcome = "scaled"           // it changes how many replicas there are
	unchanged outcome = "unchanged"        // it finds as many, or does not know how many
	suspended outcome = "suspended"        // it passes
	failed    outcome = object.ResultError // the API server refuses it
)

// decide says what the last event means for a Deployment, once. A stop that an autoscaler would undo waits.
func decide(d *appsv1.Deployment, s *schedule, autoscaled bool, now time.Time) plan {
	was := readRecord(d.Annotations)
	last, next, isStop := s.events(now)
	p := plan{transition: start, due: last.at, replicas: replicas(d), record: was, next: next}
	if isStop {
		p.transition = stop
	}
	edited := was.observed != s.observed
	handled := was.handled(now)
	passes := s.suspended || last.at.Before(s.suspendUntil)
	if !edited && !last.at.After(handled) || isStop && autoscaled && !passes {
		return p
	}
	p.fired = !edited && !handled.IsZero()
	p.record.last, p.record.next, p.record.observed = last.at, next, s.observed
	switch {
	case last.at.IsZero():
		p.outcome = noted
	case passes:
		p.outcome = suspended
	case isStop:
		p.stop(s.stopReplicas, edited)
	default:
		p.start(cmp.Or(s.startReplicas, was.original))
	}
	return p
}

// events returns the last start or stop that has come, and the instant of the first that has not. Where a start and a
// stop are the same event, the start counts: too many replicas do less harm than too few.
func (s *schedule) events(now time.Time) (last occurrence, next time.Time, isStop bool) {
	started, starts := s.start.around(now, s.zone)
	stopped, stops := s.stop.around(now, s.zone)
	last, next = started, starts.at
	if isStop = stopped.compare(started) > 0; isStop {
		last = stopped
	}
	if next.IsZero() || !stops.at.IsZero() && stops.at.Before(next) {
		next = stops.at
	}
	return last, next, isStop
}

// stop scales in, and remembers from how many. After an edit there may be only what another stop has left.
func (p *plan) stop(target int32, edited bool) {
	p.outcome, p.record.state = unchanged, StateStopped
	if p.replicas <= target {
		return
	}
	if !edited || p.replicas > p.record.original {
		p.record.original = p.replicas
	}
	p.outcome, p.replicas = scaled, target
}

// start scales out, and forgets what a stop has remembered. Where nobody knows how far, the target is zero.
func (p *plan) start(target int32) {
	p.outcome, p.record.state, p.record.original = unchanged, StateStarted, 0
	if p.replicas < target {
		p.outcome, p.replicas = scaled, target
	}
}

// remove takes back a stop, and all that is remembered.
func remove(d *appsv1.Deployment) plan {
	p := plan{transition: removal, replicas: replicas(d)}
	p.start(readRecord(d.Annotations).original)
	p.record = record{}
	return p
}

// apply changes a Deployment as planned.
func (p *plan) apply(d *appsv1.Deployment) {
	if p.outcome == scaled {
		d.Spec.Replicas = new(p.replicas)
	}
	p.record.write(d.Annotations)
}

// attempt says what could not be done.
func (p *plan) attempt(d *appsv1.Deployment) string {
	if p.outcome != scaled {
		return "Could not write down when the next start or stop comes"
	}
	return fmt.Sprintf("Could not scale from %d to %d replicas", replicas(d), p.replicas)
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// leftAlone reports whether a Deployment is not to be scaled: it is going, its rollout is paused, or something else
// decides on its replicas.
func leftAlone(d *appsv1.Deployment) bool {
	return !d.DeletionTimestamp.IsZero() || d.Spec.Paused || metav1.GetControllerOfNoCopy(d) != nil
}
