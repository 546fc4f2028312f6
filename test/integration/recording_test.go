// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// defaultTimeout is the default time limit for a condition. On an idle computer, each condition becomes true within
// moments.
const defaultTimeout = time.Minute

// A recording records all changes to the objects of one kind in a namespace since its start. It watches the API server.
type recording[T client.Object] struct {
	start     client.ObjectList // the objects that existed at the start
	namespace string

	mu      sync.Mutex
	changes []change[T]
	err     error
	more    chan struct{} // closed and replaced when a change is added
}

// A change is one revision of an object.
type change[T client.Object] struct {
	at     time.Time // when the test received the watch event
	kind   watch.EventType
	object T
}

// record starts a recording of the list's kind. The recording ends with the test. On a busy computer, the API server
// ends the watch of a client that reads too slowly. The RetryWatcher then starts a new watch after the last event.
func record[T client.Object](t *testing.T, list client.ObjectList, namespace string) *recording[T] {
	t.Helper()
	c := admin(t)
	if err := c.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	// The watch must not use t.Context(). This context is cancelled before the cleanup, and the watch would then end.
	ctx := context.WithoutCancel(t.Context())
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			into := list.DeepCopyObject().(client.ObjectList)
			return c.Watch(ctx, into, &client.ListOptions{Namespace: namespace, Raw: &options})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &recording[T]{start: list, namespace: namespace, more: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			r.add(time.Now(), event)
		}
	}()
	t.Cleanup(func() {
		watcher.Stop()
		<-done
	})
	return r
}

func recordSwitches(t *testing.T, namespace string) *recording[*v1beta1.Switch] {
	t.Helper()
	return record[*v1beta1.Switch](t, &v1beta1.SwitchList{}, namespace)
}

func recordMachines(t *testing.T, namespace string) *recording[*v1beta1.Machine] {
	t.Helper()
	return record[*v1beta1.Machine](t, &v1beta1.MachineList{}, namespace)
}

func (r *recording[T]) add(at time.Time, event watch.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if object, ok := event.Object.(T); ok {
		r.changes = append(r.changes, change[T]{at, event.Type, object})
	} else {
		r.err = fmt.Errorf("the watch sent %s: %v", event.Type, event.Object)
	}
	close(r.more)
	r.more = make(chan struct{})
}

// soFar returns the changes that are recorded so far, and a channel that is closed when the next change is added.
func (r *recording[T]) soFar(t *testing.T) ([]change[T], <-chan struct{}) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		t.Fatal(r.err)
	}
	return slices.Clip(r.changes), r.more
}

// all returns all changes so far. It lists the objects, and waits until the recording shows the state of the list, or a
// later one.
func (r *recording[T]) all(t *testing.T) []change[T] {
	t.Helper()
	current := r.start.DeepCopyObject().(client.ObjectList)
	if err := admin(t).List(t.Context(), current, client.InNamespace(r.namespace)); err != nil {
		t.Fatal(err)
	}
	want := versions(t, current)
	return r.until(t, "the recording has caught up with the API server", func(changes []change[T]) bool {
		latest, alive := versions(t, r.start), versions(t, r.start)
		for _, change := range changes {
			name, version := change.object.GetName(), change.object.GetResourceVersion()
			latest[name], alive[name] = version, version
			if change.kind == watch.Deleted {
				delete(alive, name)
			}
		}
		for name, version := range want {
			if !reaches(latest[name], version) {
				return false
			}
		}
		for name, version := range alive {
			if want[name] == "" && !reaches(version, current.GetResourceVersion()) {
				return false // its deletion is not yet recorded
			}
		}
		return true
	})
}

// versions returns the resourceVersions of a list's objects by name.
func versions(t *testing.T, list client.ObjectList) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object := item.(client.Object)
		found[object.GetName()] = object.GetResourceVersion()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// reaches reports whether the resourceVersion version is equal to other, or later than other. It returns false if
// version is empty.
func reaches(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order >= 0
}

// until waits until shown returns true for the changes so far, and returns them. what describes the condition in the
// failure message.
func (r *recording[T]) until(t *testing.T, what string, shown func([]change[T]) bool) []change[T] {
	t.Helper()
	timeout := time.After(defaultTimeout)
	for {
		changes, more := r.soFar(t)
		if shown(changes) {
			return changes
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("timed out after %s; expected: %s; recorded changes:\n%s", defaultTimeout, what, describe(changes))
		}
	}
}

// untilLast waits until shown returns true for the object of the last change, and returns all changes.
func (r *recording[T]) untilLast(t *testing.T, what string, shown func(T) bool) []change[T] {
	t.Helper()
	return r.until(t, what, func(changes []change[T]) bool {
		return len(changes) > 0 && shown(changes[len(changes)-1].object)
	})
}

// untilObject waits until shown returns true for a revision of the named object, and returns that revision.
func (r *recording[T]) untilObject(t *testing.T, name, what string, shown func(T) bool) T {
	t.Helper()
	var found T
	r.until(t, name+" "+what, func(changes []change[T]) bool {
		for _, change := range changes {
			if change.object.GetName() == name && shown(change.object) {
				found = change.object
				return true
			}
		}
		return false
	})
	return found
}

// untilDeleted waits until the named object is deleted. It returns the last revision of the object, with the
// resourceVersion of the deletion.
func (r *recording[T]) untilDeleted(t *testing.T, name string) T {
	t.Helper()
	var last T
	r.until(t, name+" is deleted", func(changes []change[T]) bool {
		for _, change := range changes {
			if change.object.GetName() == name && change.kind == watch.Deleted {
				last = change.object
				return true
			}
		}
		return false
	})
	return last
}

// mostAtOnce returns the largest number of objects that existed at the same time. An object whose first change is not
// its creation existed at the start of the recording. mostAtOnce does not know objects without changes.
func mostAtOnce[T client.Object](changes []change[T]) int {
	existing, known := map[types.UID]bool{}, map[types.UID]bool{}
	for _, change := range changes {
		uid := change.object.GetUID()
		if !known[uid] && change.kind != watch.Added {
			existing[uid] = true
		}
		known[uid] = true
	}
	most := len(existing)
	for _, change := range changes {
		uid := change.object.GetUID()
		if change.kind == watch.Deleted {
			delete(existing, uid)
		} else {
			existing[uid] = true
		}
		most = max(most, len(existing))
	}
	return most
}

func TestMostAtOnce(t *testing.T) {
	t.Parallel()
	object := func(kind watch.EventType, uid types.UID) change[*corev1.Pod] {
		return change[*corev1.Pod]{kind: kind, object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}}
	}
	for _, test := range []struct {
		reason  string
		changes []change[*corev1.Pod]
		want    int
	}{
		{"no changes", nil, 0},
		{"one after the other", []change[*corev1.Pod]{object(watch.Added, "a"), object(watch.Deleted, "a"), object(watch.Added, "b")}, 1},
		{"two at the same time", []change[*corev1.Pod]{object(watch.Added, "a"), object(watch.Added, "b"), object(watch.Deleted, "a")}, 2},
		{"an object is created before an object that existed at the start is deleted",
			[]change[*corev1.Pod]{object(watch.Added, "b"), object(watch.Modified, "a"), object(watch.Deleted, "a")}, 2},
		{"an object is created after an object that existed at the start is deleted",
			[]change[*corev1.Pod]{object(watch.Deleted, "a"), object(watch.Added, "b")}, 1},
	} {
		if got := mostAtOnce(test.changes); got != test.want {
			t.Errorf("%s: got %d, want %d", test.reason, got, test.want)
		}
	}
}

// describe formats changes for a failure message, one per line.
func describe[T client.Object](changes []change[T]) string {
	var text strings.Builder
	for _, change := range changes {
		fmt.Fprintf(&text, "%s %s %s", change.at.Format("15:04:05.000"), change.kind, change.object.GetName())
		switch object := any(change.object).(type) {
		case *v1beta1.Switch:
			fmt.Fprintf(&text, " position %s, seenAt %v, %v", object.Spec.Position, object.Status.SeenAt, object.Annotations)
		case *v1beta1.Machine:
			fmt.Fprintf(&text, " position %s, status %+v", object.Spec.Position, object.Status)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// before reports whether a is an earlier revision than b. They may be different objects.
func before(t *testing.T, a, b client.Object) bool {
	t.Helper()
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	if err != nil {
		t.Fatal(err)
	}
	return order < 0
}
