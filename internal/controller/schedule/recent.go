// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/object"
)

// recent has what this process wrote last to each Deployment, and of what it warned. Forgetting it, as a restart does, is
// safe: it costs a request that the API server refuses, or a second warning.
type recent struct {
	mu          sync.Mutex
	deployments map[types.NamespacedName]*memory
}

type memory struct {
	uid     types.UID  // of the Deployment
	version string     // of the last write
	warning string     // the last one
	failed  *time.Time // when that was due which failed last
}

func newRecent() *recent { return &recent{deployments: map[types.NamespacedName]*memory{}} }

func (r *recent) of(d client.Object) *memory {
	key := client.ObjectKeyFromObject(d)
	m := r.deployments[key]
	if m == nil || m.uid != d.GetUID() { // another one of the same name is not known
		m = &memory{uid: d.GetUID()}
		r.deployments[key] = m
	}
	return m
}

// wrote remembers the version that a write has made, and that it has not failed.
func (r *recent) wrote(d client.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.of(d)
	m.version, m.failed = d.GetResourceVersion(), nil
}

// outdated reports whether an object is older than what was last written. The newer one will wake us.
func (r *recent) outdated(d client.Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return object.Newer(r.of(d).version, d.GetResourceVersion())
}

// warns remembers a warning, which may be none, and reports whether it is a new one.
func (r *recent) warns(d client.Object, warning string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.of(d)
	known := m.warning == warning
	m.warning = warning
	return !known && warning != ""
}

// fails remembers that what was due at an instant has failed, and reports whether it has for the first time.
func (r *recent) fails(d client.Object, due time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.of(d)
	known := m.failed != nil && m.failed.Equal(due)
	m.failed = &due
	return !known
}

// forget forgets a Deployment.
func (r *recent) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.deployments, key)
}
