// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// flipMemory remembers the last flip of each Machine, because the objects do not record it in two cases. A user deletes
// the Switch before the status of the Machine has the time. Or the answer to the request was lost. A restart clears the
// memory. That is safe except in these two cases, which an operator cannot detect after a restart.
type flipMemory struct {
	mu       sync.Mutex
	machines map[types.NamespacedName]memory
}

type memory struct {
	uid types.UID // of the Machine
	flips
}

// flips are times of the last flip of a Machine. A zero time means that there was none.
type flips struct {
	done      time.Time // a Switch was turned down
	attempted time.Time // a Switch may have been turned down: the request failed without an answer
}

func newFlipMemory() *flipMemory {
	return &flipMemory{machines: map[types.NamespacedName]memory{}}
}

// of returns the remembered flips of a Machine, unless its status records them.
func (f *flipMemory) of(m *v1beta1.Machine) flips {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.machines[client.ObjectKeyFromObject(m)]
	if known.uid != m.UID {
		return flips{}
	}
	if at := m.Status.LastFlipTime; at != nil && !at.Time.Before(known.done) && !at.Time.Before(known.attempted) {
		delete(f.machines, client.ObjectKeyFromObject(m))
		return flips{}
	}
	return known.flips
}

// record replaces the remembered flips of a Machine.
func (f *flipMemory) record(m *v1beta1.Machine, last flips) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machines[client.ObjectKeyFromObject(m)] = memory{m.UID, last}
}

// forget drops the remembered flips of a Machine that does not exist any more.
func (f *flipMemory) forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.machines, key)
}
