// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/client/versioned"
	"container.training/useless/test/internal/invariants"
)

// checkInvariants watches the Machines and switches of an empty namespace. At the end of the test, it reports
// violations. After a restart, an API server may have lost old revisions. Then only the revisions before the restart
// are checked.
func checkInvariants(t *testing.T, namespace string) {
	t.Helper()
	clientset, err := versioned.NewForConfig(clientConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	group := clientset.UselessV1beta1()
	switches, err := group.Switches(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// t.Context() would end before the last events arrive.
	ctx, cancel := context.WithCancel(context.Background())
	r := &revisions{}
	t.Cleanup(func() {
		cancel()
		for _, fault := range invariants.Check(r.inOrder()) {
			t.Error(fault)
		}
		t.Logf("checked %d revisions", len(r.all))
	})
	for _, watch := range []cache.WatchFuncWithContext{group.Machines(namespace).Watch, group.Switches(namespace).Watch} {
		watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, switches.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: watch})
		if err != nil {
			t.Fatal(err)
		}
		r.following.Go(func() { r.follow(watcher) })
	}
}

// revisions collects the revisions of several watches.
type revisions struct {
	following sync.WaitGroup

	mu  sync.Mutex
	all []invariants.Revision
}

func (r *revisions) follow(watcher watch.Interface) {
	for event := range watcher.ResultChan() {
		if object, ok := event.Object.(client.Object); ok {
			r.mu.Lock()
			r.all = append(r.all, invariants.Revision{Type: event.Type, Object: object})
			r.mu.Unlock()
		}
	}
}

// inOrder waits until the watches have ended. Then it returns all revisions of both kinds, sorted by resourceVersion.
func (r *revisions) inOrder() []invariants.Revision {
	r.following.Wait()
	slices.SortStableFunc(r.all, func(a, b invariants.Revision) int {
		order, err := resourceversion.CompareResourceVersion(a.Object.GetResourceVersion(), b.Object.GetResourceVersion())
		if err != nil {
			panic(err) // an API server's versions are numbers
		}
		return order
	})
	return r.all
}
