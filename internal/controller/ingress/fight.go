// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"time"
)

const (
	// A fight begins when other writers have reverted the annotations more than maxReverts times within the window. It
	// ends when the annotations have stayed unchanged for the length of the window.
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
		h.reverts, h.delay = nil, 0 // the annotations had stayed for the window
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
