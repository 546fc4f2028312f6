// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/object"
)

// recent remembers what this process wrote, or was told by the API server, until its cache shows it, so that a cache that lags
// behind costs neither a refused request nor a second one. Forgetting objects, as a restart does, is always safe: names follow
// from what is there, and every change carries the version it was decided on.
type recent struct {
	mu       sync.Mutex
	machines map[types.NamespacedName]*writes
}

// writes are those of one Machine. Switches that were deleted are nil.
type writes struct {
	uid      types.UID // of the Machine
	machine  *v1beta1.Machine
	switches map[types.UID]*v1beta1.Switch
	flips    flipping
}

// flipping is what this process knows of a Machine's flips that no object may tell of yet; zero for nothing.
type flipping struct {
	done      time.Time // when a switch was certainly turned down, until the Machine's status says so
	attempted time.Time // when one may have been: whether it was is told by its event, unless somebody deletes it before
}

func newRecent() *recent {
	return &recent{machines: map[types.NamespacedName]*writes{}}
}

func (w *writes) empty() bool {
	return w.machine == nil && len(w.switches) == 0 && w.flips == (flipping{})
}

func (r *recent) of(m *v1beta1.Machine) *writes {
	if r.machines[key(m)] == nil {
		r.machines[key(m)] = &writes{uid: m.UID, switches: map[types.UID]*v1beta1.Switch{}}
	}
	return r.machines[key(m)]
}

// wrote remembers the Machine as the API server has it. Like those of the cache, it is not to be changed again.
func (r *recent) wrote(m *v1beta1.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(m)
	known.machine = m
	if at := m.Status.LastFlipTime; at != nil && !at.Time.Before(known.flips.done) {
		known.flips.done = time.Time{}
	}
}

// wroteSwitch remembers a Machine's switch as the API server has it.
func (r *recent) wroteSwitch(m *v1beta1.Machine, sw *v1beta1.Switch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(m).switches[sw.UID] = sw
}

// deletedSwitch remembers that a Machine's switch is gone.
func (r *recent) deletedSwitch(m *v1beta1.Machine, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(m).switches[uid] = nil
}

// flipped remembers when one of a Machine's switches was certainly turned down.
func (r *recent) flipped(m *v1beta1.Machine, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(m).flips = flipping{done: at}
}

// sawFlip remembers a flip that only a switch tells of, which somebody may delete before the Machine's status says it.
func (r *recent) sawFlip(m *v1beta1.Machine, at time.Time) {
	if told := m.Status.LastFlipTime; at.IsZero() || told != nil && !told.Time.Before(at) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	flips := &r.of(m).flips
	flips.done = latest(flips.done, at)
}

// mayHaveFlipped remembers when one of a Machine's switches may have been turned down.
func (r *recent) mayHaveFlipped(m *v1beta1.Machine, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(m).flips.attempted = at
}

// flipping returns what is known of a Machine's flips that its status may not tell of yet.
func (r *recent) flipping(m *v1beta1.Machine) flipping {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.machines[key(m)]; known != nil {
		return known.flips
	}
	return flipping{}
}

// forget forgets all about a Machine.
func (r *recent) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.machines, key)
}

// latest returns the Machine as last written if the cache has not got that far, or as the cache has it.
func (r *recent) latest(cached *v1beta1.Machine) *v1beta1.Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.machines[key(cached)]
	switch {
	case known == nil:
		return cached
	case known.uid != cached.UID: // an earlier one of that name
		delete(r.machines, key(cached))
		return cached
	case known.machine != nil && !reached(known.machine, cached):
		return known.machine
	}
	known.machine = nil
	return cached
}

// overlay returns the cached switches as they are after this process's own writes. The cache has seen everything up
// to the version seen.
func (r *recent) overlay(m *v1beta1.Machine, cached []*v1beta1.Switch, seen string) []*v1beta1.Switch {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.machines[key(m)]
	if known == nil {
		return cached
	}
	unseen := maps.Clone(known.switches)
	merged := make([]*v1beta1.Switch, 0, len(cached)+len(unseen))
	for _, sw := range cached {
		written, ok := unseen[sw.UID]
		delete(unseen, sw.UID)
		switch {
		case !ok || outdated(written, sw):
			delete(known.switches, sw.UID)
			merged = append(merged, sw)
		case written != nil:
			merged = append(merged, written)
		}
	}
	for uid, written := range unseen {
		if written == nil || !object.Newer(written.ResourceVersion, seen) {
			delete(known.switches, uid)
			continue
		}
		merged = append(merged, written)
	}
	if known.empty() {
		delete(r.machines, key(m))
	}
	return slices.Clip(merged)
}

// outdated reports whether the cache has got as far as a write, or further. A deletion that has only begun, because
// somebody's finalizer keeps it from ending, is there to be seen.
func outdated(written, cached *v1beta1.Switch) bool {
	if written == nil {
		return !cached.DeletionTimestamp.IsZero()
	}
	return !object.Newer(written.ResourceVersion, cached.ResourceVersion)
}

// reached reports whether the cache has got as far as a Machine that is known, or further: of one that was let go, there is only
// further.
func reached(known, cached *v1beta1.Machine) bool {
	if letGo(known) {
		return object.Newer(cached.ResourceVersion, known.ResourceVersion)
	}
	return !object.Newer(known.ResourceVersion, cached.ResourceVersion)
}

// letGo reports whether a Machine is on its way out and no longer waits for the operator. Where nothing else held it, it has
// the version of before: there is no later one but the deletion.
func letGo(m *v1beta1.Machine) bool {
	return !m.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(m, v1beta1.MachineFinalizer)
}

func key(m *v1beta1.Machine) types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}
