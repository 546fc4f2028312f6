// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/queue"
)

var now = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	cases := map[string]struct {
		reason string
		rs     metav1.ObjectMeta
		pods   int
		want   string
		write  bool
	}{
		"NilLabels": {"a ReplicaSet without labels gets the label", metav1.ObjectMeta{}, 3, "3", true},
		"Zero":      {"the label is also set if there are no Pods", metav1.ObjectMeta{}, 0, "0", true},
		"Right": {"a correct label is not written",
			metav1.ObjectMeta{Labels: map[string]string{"pod-count": "3"}}, 3, "3", false},
		"Wrong": {"an incorrect label is written",
			metav1.ObjectMeta{Labels: map[string]string{"pod-count": "2"}}, 3, "3", true},
		"OtherLabel": {"other labels are ignored", metav1.ObjectMeta{Labels: map[string]string{"pods": "3"}}, 3, "3",
			true},
		"BeingDeleted": {"a ReplicaSet that is being deleted gets no label",
			metav1.ObjectMeta{DeletionTimestamp: new(metav1.NewTime(now))}, 3, "3", false},
		"Paused": {"a paused ReplicaSet gets no label",
			metav1.ObjectMeta{Annotations: map[string]string{v1beta1.PausedAnnotation: "true"}}, 3, "3", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			value, write := decide(&metav1.PartialObjectMetadata{ObjectMeta: c.rs}, "pod-count", c.pods)
			if value != c.want || write != c.write {
				t.Errorf("%s: got %q, write %t; want %q, %t", c.reason, value, write, c.want, c.write)
			}
		})
	}
}

func TestOwner(t *testing.T) {
	web := replicaSet{types.NamespacedName{Namespace: "default", Name: "web"}, "1"}
	ref := func(apiVersion, kind string, controller *bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", UID: "1",
			Controller: controller}}
	}
	cases := map[string]struct {
		reason string
		pod    *metav1.ObjectMeta
		want   replicaSet
	}{
		"Controlled": {"a Pod counts for its controller",
			&metav1.ObjectMeta{OwnerReferences: ref("apps/v1", "ReplicaSet", new(true))}, web},
		"OtherVersion": {"the version of the owner reference does not matter",
			&metav1.ObjectMeta{OwnerReferences: ref("apps/v1beta2", "ReplicaSet", new(true))}, web},
		"Owned": {"a Pod does not count for an owner that is not its controller",
			&metav1.ObjectMeta{OwnerReferences: ref("apps/v1", "ReplicaSet", nil)}, replicaSet{}},
		"OtherKind": {"a Pod of a Job does not count",
			&metav1.ObjectMeta{OwnerReferences: ref("batch/v1", "Job", new(true))}, replicaSet{}},
		"OtherGroup": {"a Pod of a ReplicaSet of another API group does not count",
			&metav1.ObjectMeta{OwnerReferences: ref("example.com/v1", "ReplicaSet", new(true))}, replicaSet{}},
		"Orphan": {"a Pod without an owner does not count", &metav1.ObjectMeta{}, replicaSet{}},
		"BeingDeleted": {
			"a Pod that is being deleted does not count",
			&metav1.ObjectMeta{DeletionTimestamp: new(metav1.NewTime(now)),
				OwnerReferences: ref("apps/v1", "ReplicaSet", new(true))}, replicaSet{},
		},
		"None": {"a nil Pod does not count", nil, replicaSet{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var pod client.Object
			if c.pod != nil {
				c.pod.Namespace = "default"
				pod = &metav1.PartialObjectMetadata{ObjectMeta: *c.pod}
			}
			if got := owner(pod); got != c.want {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		})
	}
}

// TestOnPod checks which ReplicaSets are recounted after an event of a Pod.
func TestOnPod(t *testing.T) {
	pod := func(controller string, changes ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}}
		if controller != "" {
			object.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: controller, UID: types.UID(controller),
					Controller: new(true)},
			}
		}
		for _, change := range changes {
			change(object)
		}
		return object
	}
	deleted := func(object *metav1.PartialObjectMetadata) { object.DeletionTimestamp = new(metav1.NewTime(now)) }
	changed := func(object *metav1.PartialObjectMetadata) { object.ResourceVersion = "2" }
	create := func(object client.Object) func(handler.EventHandler, workQueue) {
		return func(h handler.EventHandler, q workQueue) { h.Create(t.Context(), event.CreateEvent{Object: object}, q) }
	}
	update := func(before, after client.Object) func(handler.EventHandler, workQueue) {
		return func(h handler.EventHandler, q workQueue) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
		}
	}
	remove := func(object client.Object) func(handler.EventHandler, workQueue) {
		return func(h handler.EventHandler, q workQueue) { h.Delete(t.Context(), event.DeleteEvent{Object: object}, q) }
	}
	for _, c := range []struct {
		reason string
		happen func(handler.EventHandler, workQueue)
		want   []string
	}{
		{"a new Pod counts", create(pod("a")), []string{"a"}},
		{"a new Pod that is already being deleted does not count", create(pod("a", deleted)), nil},
		{"a new Pod without an owner does not count", create(pod("")), nil},
		{"another change of a Pod does not affect the count", update(pod("a"), pod("a", changed)), nil},
		{"a Pod gets a deletionTimestamp", update(pod("a"), pod("a", deleted)), []string{"a"}},
		{"the final deletion of such a Pod does not affect the count", remove(pod("a", deleted)), nil},
		{"a Pod is deleted without a deletionTimestamp", remove(pod("a")), []string{"a"}},
		{"a Pod changes its ReplicaSet", update(pod("a"), pod("b")), []string{"a", "b"}},
		{"a Pod is orphaned", update(pod("a"), pod("")), []string{"a"}},
		{"a Pod is adopted", update(pod(""), pod("b")), []string{"b"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			controller := &Controller{clock: clocktesting.NewFakePassiveClock(now), bursts: newBursts(),
				alarms: queue.NewAlarms(clock.RealClock{})}
			woken := priorityqueue.New[reconcile.Request]("test")
			t.Cleanup(woken.ShutDown)
			if err := controller.alarms.Source().Start(t.Context(), woken); err != nil {
				t.Fatal(err)
			}
			c.happen(controller.onPod(), woken)
			var got []string
			for rs := range controller.bursts.byRS {
				got = append(got, rs.Name)
			}
			slices.Sort(got)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("woken (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBursts(t *testing.T) {
	rs := types.NamespacedName{Namespace: "default", Name: "web"}
	cases := map[string]struct {
		reason string
		events []time.Duration // since the first event
		want   time.Duration   // when the Pods are counted
		over   bool            // the burst is over at that time
	}{
		"One": {"the Pods are counted soon after a single event", []time.Duration{0}, 500 * time.Millisecond, true},
		"Two": {"another event delays the count", []time.Duration{0, 400 * time.Millisecond},
			900 * time.Millisecond, true},
		"Endless": {"a long burst cannot delay the count forever", []time.Duration{0, 9700 * time.Millisecond},
			10 * time.Second, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bursts := newBursts()
			for _, at := range c.events {
				if due := bursts.note(rs, now.Add(at)); due.Sub(now) > c.want {
					t.Errorf("%s: due after %s", c.reason, due.Sub(now))
				}
			}
			last := c.events[len(c.events)-1]
			if due, next := bursts.look(rs, now.Add(last)); due || next.Sub(now) != c.want {
				t.Errorf("%s: due: %v; next after %s, want %s", c.reason, due, next.Sub(now), c.want)
			}
			due, next := bursts.look(rs, now.Add(c.want))
			if !due || next.IsZero() != c.over || (len(bursts.byRS) == 0) != c.over {
				t.Errorf("%s: due: %v; next at %s; bursts: %v", c.reason, due, next, bursts.byRS)
			}
			if due, next := bursts.look(rs, latest(next, now.Add(c.want))); !due || !next.IsZero() ||
				len(bursts.byRS) > 0 {
				t.Errorf("%s: due: %v; next at %s; bursts: %v", c.reason, due, next, bursts.byRS)
			}
		})
	}
}

// TestBurstsOnStandby checks that a standby replica, which does not count Pods, does not store an unlimited number of
// bursts.
func TestBurstsOnStandby(t *testing.T) {
	bursts := newBursts()
	for i := range 1000 {
		bursts.note(types.NamespacedName{Name: fmt.Sprint(i)}, now.Add(time.Duration(i)*time.Second))
		if stored := len(bursts.byRS); stored > 25 { // one per second, and none older than 2*patience
			t.Fatalf("%d bursts are stored after %d events, want at most 25", stored, i+1)
		}
	}
	if count, _ := bursts.look(types.NamespacedName{Name: "0"}, now.Add(1000*time.Second)); !count {
		t.Error("a ReplicaSet whose burst was dropped is not counted")
	}
	if _, ok := bursts.byRS[types.NamespacedName{Name: "999"}]; !ok {
		t.Error("a current burst was dropped")
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestEndlessBurst simulates an event every 50 ms, the rate at which kube-controller-manager creates Pods, with a pause
// of 400 ms every two seconds. The Pods must be counted at regular times.
func TestEndlessBurst(t *testing.T) {
	const tick, during = 50 * time.Millisecond, time.Minute
	rs, bursts, alarm := types.NamespacedName{Name: "web"}, newBursts(), time.Time{}
	counts, last := 0, now
	for at := now; at.Sub(now) < during; at = at.Add(tick) {
		if at.Sub(now)%(2*time.Second) > 400*time.Millisecond {
			alarm = bursts.note(rs, at)
		}
		if alarm.IsZero() || at.Before(alarm) {
			continue
		}
		var due bool
		due, alarm = bursts.look(rs, at)
		if !due {
			continue
		}
		counts++
		if late := at.Sub(last); late > patience+time.Second {
			t.Errorf("no count for %s", late)
		}
		last = at
	}
	if want := int(during / patience); counts > want || counts < want-1 {
		t.Errorf("counted %d times in %s, want %d", counts, during, want)
	}
}

func TestValidate(t *testing.T) {
	cases := map[string]struct{ label, wantErr string }{
		"Default":  {DefaultLabel, ""},
		"Prefixed": {"example.com/pods", ""},
		"Empty":    {"", ""},
		"Space":    {"pod count", "for example, pod-count or example.com/pod-count"},
		"Slashes":  {"a/b/c", "a valid label key must consist of"},
		"Long":     {strings.Repeat("a", 64), "no more than 63"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := Options{Label: c.label}.Validate()
			if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("got %v, want %q", err, c.wantErr)
			}
		})
	}
}

func TestStrip(t *testing.T) {
	full := metav1.ObjectMeta{
		Namespace: "default", Name: "web", UID: "1", ResourceVersion: "2", DeletionTimestamp: new(metav1.NewTime(now)),
		GenerateName: "w", Finalizers: []string{"a/b"},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		Labels:          map[string]string{"pod-count": "1"},
		Annotations:     map[string]string{v1beta1.PausedAnnotation: "true", "other": "value"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet"}},
	}
	identity := metav1.ObjectMeta{
		Namespace: "default", Name: "web", UID: "1", ResourceVersion: "2", DeletionTimestamp: new(metav1.NewTime(now)),
	}
	pod, replicaSet := identity, identity
	pod.OwnerReferences = full.OwnerReferences
	replicaSet.Labels, replicaSet.Annotations = full.Labels, map[string]string{v1beta1.PausedAnnotation: "true"}
	want := map[string]metav1.ObjectMeta{"*v1.Pod": pod, "*v1.ReplicaSet": replicaSet}
	got := map[string]metav1.ObjectMeta{}
	for kind, options := range (Options{}).CacheOptions() {
		object := &metav1.PartialObjectMetadata{ObjectMeta: *full.DeepCopy()}
		for range 2 { // client-go may transform an object twice
			if _, err := options.Transform(object); err != nil {
				t.Fatal(err)
			}
		}
		got[fmt.Sprintf("%T", kind)] = object.ObjectMeta
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cached (-want +got):\n%s", diff)
	}
}
