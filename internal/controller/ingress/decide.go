// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"maps"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"container.training/useless/api/useless/v1beta1"
)

// plan describes the changes to the annotations of an Ingress.
type plan struct {
	annotations map[string]string // all annotations that the operator ensures

	set, restore, remove []string // keys that change
	unsaved              []string // keys in set whose previous value is too large to save
	release              []string // keys that the operator stops owning, because another manager has set the same value

	// The request is a merge patch of the annotations in patch, with nil for a removal. If patch is empty, the request
	// is a server-side apply of the annotations in apply.
	patch map[string]*string
	apply map[string]string
}

func (p plan) isEmpty() bool {
	return len(p.set) == 0 && len(p.remove) == 0 && len(p.release) == 0 && len(p.patch) == 0
}

// keys returns the keys that the request changes. A plan that is not empty has at least one.
func (p plan) keys() []string {
	if keys := slices.Concat(p.set, p.restore, p.remove, p.release); len(keys) > 0 {
		return keys
	}
	return slices.Sorted(maps.Keys(p.patch))
}

// decision is a plan for an Ingress, and the time to execute it.
type decision struct {
	plan
	history  history // its field due is the time to execute the plan
	reverted bool    // another writer has changed annotations that the operator had set
}

// decide returns the decision about an Ingress with a history.
func decide(ingress *networkingv1.Ingress, o Options, known history, now time.Time) decision {
	p := newPlan(ingress, o)
	after, reverted := known.saw(p, now)
	return decision{p, after, reverted}
}

// newPlan returns the plan for an Ingress. An annotation that already has the configured value causes no write, even if
// another manager owns it.
//
// Usually, a plan uses server-side apply, because the managed fields then record the annotations that the operator has
// set. But the operator would also own each value that it restores by server-side apply. Therefore a plan that
// overwrites or restores a value of another manager uses a merge patch. If an Ingress has saved values, its plan always
// uses a merge patch: a plan is a single request, and this request may have to restore a saved value.
func newPlan(ingress *networkingv1.Ingress, o Options) plan {
	s := stateOf(ingress)
	p := plan{annotations: o.wanted(ingress, s)}
	mergePatch := len(s.saved) > 0
	for _, key := range slices.Sorted(maps.Keys(p.annotations)) {
		if value, ok := s.values[key]; !ok || value != p.annotations[key] {
			p.set = append(p.set, key)
			mergePatch = mergePatch || s.theirs(key) != nil
		}
	}
	for _, key := range sets.List(s.own) {
		_, wanted := p.annotations[key]
		switch theirs := s.theirs(key); {
		case wanted:
		case theirs == nil:
			p.remove = append(p.remove, key)
		case *theirs != s.values[key]:
			p.restore = append(p.restore, key)
		default:
			p.release = append(p.release, key)
		}
	}
	if mergePatch {
		return p.byMergePatch(s)
	}
	return p.byApply(s)
}

// wanted returns the annotations that the operator ensures on an Ingress.
func (o Options) wanted(ingress *networkingv1.Ingress, s state) map[string]string {
	if s.values[v1beta1.IngressAnnotationsAnnotation] == v1beta1.IngressAnnotationsDisabled ||
		len(o.Classes) > 0 && !slices.Contains(o.Classes, s.classOf(ingress)) {
		return nil
	}
	if o.Policy != PolicyIfNotPresent {
		return o.Annotations
	}
	wanted := maps.Clone(o.Annotations)
	maps.DeleteFunc(wanted, func(key, _ string) bool { return s.theirs(key) != nil })
	return wanted
}

// byApply completes a plan with a server-side apply. The request contains no values that other managers have set, so
// the operator never owns them.
func (p plan) byApply(s state) plan {
	p.apply = map[string]string{}
	for key, value := range p.annotations {
		if s.own.Has(key) || slices.Contains(p.set, key) {
			p.apply[key] = value
		}
	}
	return p
}

// byMergePatch completes a plan with a merge patch. It saves a value or nil for each annotation that it sets. A merge
// patch cannot release an annotation without changing its value. Therefore the release waits until no values are saved.
func (p plan) byMergePatch(s state) plan {
	p.release, p.patch = nil, map[string]*string{}
	saved := originals{}
	for key := range p.annotations {
		if value, ok := s.saved[key]; ok {
			saved[key] = value
		}
	}
	for _, key := range p.set {
		p.patch[key] = new(p.annotations[key])
		if !saved.save(key, s.theirs(key)) {
			p.unsaved = append(p.unsaved, key)
		}
	}
	for _, key := range slices.Concat(p.restore, p.remove) {
		p.patch[key] = s.theirs(key)
	}
	switch after := saved.String(); after {
	case s.saved.String():
	case "":
		p.patch[v1beta1.OriginalAnnotationsAnnotation] = nil
	default:
		p.patch[v1beta1.OriginalAnnotationsAnnotation] = &after
	}
	return p
}

const (
	// A fight begins when other writers have reverted the annotations more than maxReverts times within the window. It
	// ends when the annotations have stayed unchanged for longer than the window.
	maxReverts = 5
	window     = 10 * time.Minute

	// In a fight, the delay before the next write is firstDelay. It doubles with each revert, up to lastDelay.
	firstDelay, lastDelay = 10 * time.Second, 10 * time.Minute
)

// history records the writes of this process to the annotations of an Ingress, and the reverts by other writers.
type history struct {
	applied time.Time   // the last time when annotations were set; zero for never, and after their removal
	reverts []time.Time // the times of the reverts within the window
	open    bool        // the last revert was counted, but the annotations are not set again yet
	delay   time.Duration
	due     time.Time // the time to set them again; zero for now
	refusal string    // the error of the last refused write; empty if the last write succeeded
}

// fighting reports whether another writer keeps reverting annotations.
func (h history) fighting() bool { return h.delay > 0 }

// saw returns the history after the controller has made a plan. It also reports whether the plan shows a new revert by
// another writer.
func (h history) saw(p plan, now time.Time) (after history, reverted bool) {
	switch {
	case p.isEmpty() && (h.open || h.refusal != ""): // another writer has set the configured values itself
		h.applied = now
		return h.done(p), false
	case len(p.set) == 0:
		h.due = time.Time{} // a removal does not wait for the end of a fight
		return h, false
	case h.applied.IsZero() || h.open:
		return h, false
	}
	if now.Sub(h.applied) > window {
		h.reverts, h.delay = nil, 0 // the annotations stayed unchanged for longer than the window
	}
	h.reverts = slices.DeleteFunc(slices.Clone(h.reverts), func(at time.Time) bool { return now.Sub(at) > window })
	h.reverts = append(h.reverts, now)
	h.open, h.due = true, time.Time{}
	if h.fighting() || len(h.reverts) > maxReverts {
		h.delay = min(max(2*h.delay, firstDelay), lastDelay)
		h.due = now.Add(h.delay)
	}
	return h, true
}

// wrote returns the history after a plan was executed.
func (h history) wrote(p plan, now time.Time) history {
	if len(p.set) > 0 {
		h.applied = now
	}
	return h.done(p)
}

func (h history) done(p plan) history {
	h.open, h.due, h.refusal = false, time.Time{}, ""
	if len(p.annotations) == 0 {
		h.applied = time.Time{} // a later change by another writer is not a revert
	}
	return h
}

// refused returns the history after the API server has refused a plan. It also reports whether the error differs from
// the previous error.
func (h history) refused(err error) (after history, news bool) {
	news = h.refusal != err.Error()
	h.refusal = err.Error()
	return h, news
}
