// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/object"
)

const (
	// An Ingress is fought over once its annotations were reverted more than maxReverts times within the window, and
	// until they have held for as long.
	maxReverts = 5
	window     = 10 * time.Minute

	// Between the first revert of a fight and the next try passes firstDelay, and twice as much each time, up to lastDelay.
	firstDelay, lastDelay = 10 * time.Second, 10 * time.Minute
)

// A history is what became of the annotations that this process has set on an Ingress.
type history struct {
	uid     types.UID
	version string      // of the Ingress, as the last write left it
	applied time.Time   // when annotations were last set; zero for never, or not since they were last removed
	reverts []time.Time // when they were found changed, within the window
	open    bool        // that is so now, and counted
	delay   time.Duration
	due     time.Time // when to set them again; zero for at once
	refusal string    // why the API server has not let it set them; empty if it has
}

// ahead reports whether the process has written a later version than the cache has. That one will wake it.
func (h history) ahead(cached string) bool {
	return object.Newer(h.version, cached)
}

// fighting reports whether somebody else keeps reverting annotations.
func (h history) fighting() bool { return h.delay > 0 }

// saw returns the history after it was seen at a time what a plan has to change, and whether that is a revert that had
// not been seen before.
func (h history) saw(p plan, now time.Time) (after history, reverted bool) {
	if len(p.set) == 0 {
		h.due = time.Time{} // nobody has anything against what is to be removed
		return h, false
	}
	if h.applied.IsZero() || h.open {
		return h, false
	}
	if now.Sub(h.applied) > window {
		h.reverts, h.delay = nil, 0 // they had held
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

// settled returns the history after it was seen at a time that a plan has nothing to change, and whether that is news:
// whoever had changed the annotations has given in.
func (h history) settled(p plan, now time.Time) (after history, news bool) {
	if !h.open && h.refusal == "" {
		return h, false
	}
	h.applied = now
	return h.done(p), true
}

// wrote returns the history after a plan was carried out at a time.
func (h history) wrote(version string, p plan, now time.Time) history {
	h.version = version
	if len(p.set) > 0 {
		h.applied = now
	}
	return h.done(p)
}

func (h history) done(p plan) history {
	h.open, h.due, h.refusal = false, time.Time{}, ""
	if len(p.annotations) == 0 {
		h.applied = time.Time{} // whoever changes them now reverts nothing
	}
	return h
}

// refused returns the history after the API server has refused a plan, and whether it had not done so in these words.
func (h history) refused(err error) (after history, news bool) {
	news = h.refusal != err.Error()
	h.refusal = err.Error()
	return h, news
}

// histories are those of all Ingresses that this process has written. Forgetting one, as a restart does, costs a few
// writes where there is a fight.
type histories struct {
	mu    sync.Mutex
	byKey map[types.NamespacedName]history
}

func newHistories() *histories { return &histories{byKey: map[types.NamespacedName]history{}} }

// of returns the history of an Ingress, which is empty for one that is only called as another was.
func (h *histories) of(ingress client.Object) history {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.byKey[client.ObjectKeyFromObject(ingress)]; known.uid == ingress.GetUID() {
		return known
	}
	return history{uid: ingress.GetUID()}
}

// keep remembers the history of an Ingress.
func (h *histories) keep(ingress client.Object, known history) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byKey[client.ObjectKeyFromObject(ingress)] = known
}

// forget forgets an Ingress that is gone.
func (h *histories) forget(key types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byKey, key)
}
