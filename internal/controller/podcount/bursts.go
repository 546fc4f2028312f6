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
	// silence ends a burst. kube-controller-manager makes the Pods of a new ReplicaSet in batches, with pauses of 300 ms in
	// between when it is busy.
	silence = 500 * time.Millisecond

	// patience is how long a burst can put off the label, however long it goes on.
	patience = 10 * time.Second
)

// A burst is a series of events about one ReplicaSet.
type burst struct {
	last    time.Time
	counted time.Time // when the Pods were last counted although it went on; until then, when it began
}

// over returns when the burst is over unless there are more events.
func (b burst) over() time.Time { return b.last.Add(silence) }

// due returns when the Pods are to be counted unless there are more events before.
func (b burst) due() time.Time {
	if latest := b.counted.Add(patience); latest.Before(b.over()) {
		return latest
	}
	return b.over()
}

// bursts are those that are under way. Forgetting one, as a restart does, costs one more write.
type bursts struct {
	mu    sync.Mutex
	byRS  map[types.NamespacedName]burst
	swept time.Time
}

func newBursts() *bursts { return &bursts{byRS: map[types.NamespacedName]burst{}} }

// note adds an event to the burst of a ReplicaSet, or starts one. It returns after how long to look at it.
func (b *bursts) note(rs types.NamespacedName, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(now)
	known, ok := b.byRS[rs]
	if !ok {
		known.counted = now
	}
	known.last = now
	b.byRS[rs] = known
	return max(known.due().Sub(now), 1) // zero would be at once, which is for the queue to say
}

// sweep forgets now and then what nobody looks at: a replica that waits for its turn as the leader learns of everything that
// happens, for weeks. To look at a burst that is forgotten is to find it over.
func (b *bursts) sweep(now time.Time) {
	if now.Sub(b.swept) < patience {
		return
	}
	b.swept = now
	maps.DeleteFunc(b.byRS, func(_ types.NamespacedName, known burst) bool { return now.Sub(known.over()) >= patience })
}

// look reports whether to count the Pods of a ReplicaSet, and after how long to look again; zero is for never. A burst
// that is over is forgotten before the caches are read, so that what happens from then on starts another one.
func (b *bursts) look(rs types.NamespacedName, now time.Time) (count bool, again time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.byRS[rs]
	switch {
	case !ok || !now.Before(known.over()):
		delete(b.byRS, rs)
		return true, 0
	case !now.Before(known.due()):
		known.counted = now
		b.byRS[rs] = known
		return true, known.due().Sub(now)
	}
	return false, known.due().Sub(now)
}
