// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// silence is the time without events that ends a burst. kube-controller-manager creates the Pods of a new
	// ReplicaSet in batches, with pauses of 300 ms when it is busy.
	silence = 500 * time.Millisecond

	// patience is the longest time for which a burst delays the label.
	patience = 10 * time.Second
)

// burst is a series of events about one ReplicaSet.
type burst struct {
	last    time.Time // the last event
	counted time.Time // when the Pods were last counted during the burst, or the first event
}

// end returns when the burst ends if there is no other event.
func (b burst) end() time.Time { return b.last.Add(silence) }

// due returns when the Pods are to be counted if there is no other event.
func (b burst) due() time.Time {
	if latest := b.counted.Add(patience); latest.Before(b.end()) {
		return latest
	}
	return b.end()
}

// bursts has the current bursts. A restart forgets them, which costs one more write.
type bursts struct {
	mu    sync.Mutex
	byRS  map[types.NamespacedName]burst
	swept time.Time
}

func newBursts() *bursts { return &bursts{byRS: map[types.NamespacedName]burst{}} }

// note adds an event to the burst of a ReplicaSet, or starts a burst. It returns when to call look.
func (b *bursts) note(rs types.NamespacedName, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(now)
	known, ok := b.byRS[rs]
	if !ok {
		known.counted = now
	}
	known.last = now
	b.byRS[rs] = known
	return known.due()
}

// sweep removes old bursts from time to time, because a standby replica receives all events but never calls look.
func (b *bursts) sweep(now time.Time) {
	if now.Sub(b.swept) < patience {
		return
	}
	b.swept = now
	maps.DeleteFunc(b.byRS, func(_ types.NamespacedName, known burst) bool { return now.Sub(known.end()) >= patience })
}

// look reports whether to count the Pods of a ReplicaSet now, and returns when to look again; zero means never. It
// removes a burst that has ended before the controller reads the caches, so that a later event starts another burst.
func (b *bursts) look(rs types.NamespacedName, now time.Time) (due bool, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.byRS[rs]
	switch {
	case !ok || !now.Before(known.end()):
		delete(b.byRS, rs)
		return true, time.Time{}
	case !now.Before(known.due()):
		known.counted = now
		b.byRS[rs] = known
		return true, known.due()
	}
	return false, known.due()
}
