// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
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
		wrong  bool
	}{
		"NilLabels": {"a ReplicaSet without labels gets the label", metav1.ObjectMeta{}, 3, "3", true},
		"Zero":      {"the label is also set if there are no Pods", metav1.ObjectMeta{}, 0, "0", true},
		"Right": {"a correct label is not written",
			metav1.ObjectMeta{Labels: map[string]string{"pod-count": "3"}}, 3, "3", false},
		"Wrong": {"an incorrect label is corrected",
			metav1.ObjectMeta{Labels: map[string]string{"pod-count": "2"}}, 3, "3", true},
		"OtherLabel": {"other labels are ignored", metav1.ObjectMeta{Labels: map[string]string{"pods": "3"}}, 3, "3",
			true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			value, wrong := decide(&metav1.PartialObjectMetadata{ObjectMeta: c.rs}, "pod-count", c.pods)
			if value != c.want || wrong != c.wrong {
				t.Errorf("%s: got %q, wrong %t; want %q, %t", c.reason, value, wrong, c.want, c.wrong)
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
		"Controlled": {"a Pod belongs to its controller",
			&metav1.ObjectMeta{OwnerReferences: ref("apps/v1", "ReplicaSet", new(true))}, web},
		"OtherVersion": {"the version of the owner reference does not matter",
			&metav1.ObjectMeta{OwnerReferences: ref("apps/v1beta2", "ReplicaSet", new(true))}, web},
		"Owned": {"a Pod does not belong to an owner that is not its controller",
			&metav1.ObjectMeta{OwnerReferences: ref("apps/v1", "ReplicaSet", nil)}, replicaSet{}},
		"OtherKind": {"a Pod of a Job belongs to no ReplicaSet",
			&metav1.ObjectMeta{OwnerReferences: ref("batch/v1", "Job", new(true))}, replicaSet{}},
		"OtherGroup": {"a Pod of a ReplicaSet of another API group is ignored",
			&metav1.ObjectMeta{OwnerReferences: ref("example.com/v1", "ReplicaSet", new(true))}, replicaSet{}},
		"Orphan": {"a Pod without an owner is ignored", &metav1.ObjectMeta{}, replicaSet{}},
		"BeingDeleted": {
			"a Pod that is being deleted is ignored",
			&metav1.ObjectMeta{DeletionTimestamp: new(metav1.NewTime(now)),
				OwnerReferences: ref("apps/v1", "ReplicaSet", new(true))}, replicaSet{},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.pod.Namespace = "default"
			pod := &metav1.PartialObjectMetadata{ObjectMeta: *c.pod}
			if got := owner(pod); got != c.want {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		})
	}
}

// TestOnPod checks which ReplicaSets the controller counts again after an event of a Pod.
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
	create := func(object client.Object) func(handler.EventHandler) {
		e := event.CreateEvent{Object: object}
		return func(h handler.EventHandler) {
			if moved.Create(e) {
				h.Create(t.Context(), e, nil)
			}
		}
	}
	update := func(before, after client.Object) func(handler.EventHandler) {
		e := event.UpdateEvent{ObjectOld: before, ObjectNew: after}
		return func(h handler.EventHandler) {
			if moved.Update(e) {
				h.Update(t.Context(), e, nil)
			}
		}
	}
	remove := func(object client.Object) func(handler.EventHandler) {
		e := event.DeleteEvent{Object: object}
		return func(h handler.EventHandler) {
			if moved.Delete(e) {
				h.Delete(t.Context(), e, nil)
			}
		}
	}
	for _, c := range []struct {
		reason string
		happen func(handler.EventHandler)
		want   []string
	}{
		{"a new Pod counts", create(pod("a")), []string{"a"}},
		{"a new Pod that is already being deleted does not count", create(pod("a", deleted)), nil},
		{"a new Pod without an owner does not count", create(pod("")), nil},
		{"a change of other fields of a Pod does not affect the count", update(pod("a"), pod("a", changed)), nil},
		{"a Pod gets a deletionTimestamp", update(pod("a"), pod("a", deleted)), []string{"a"}},
		{"the final deletion of such a Pod does not affect the count", remove(pod("a", deleted)), nil},
		{"a Pod is deleted without a deletionTimestamp", remove(pod("a")), []string{"a"}},
		{"a Pod changes its ReplicaSet", update(pod("a"), pod("b")), []string{"a", "b"}},
		{"a Pod is orphaned", update(pod("a"), pod("")), []string{"a"}},
		{"a Pod is adopted", update(pod(""), pod("b")), []string{"b"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			controller := &Controller{clock: clock.RealClock{}, alarms: queue.NewAlarms(clock.RealClock{})}
			c.happen(controller.waking(owner))
			var got []string
			for rs := range controller.bursts.Range {
				got = append(got, rs.(types.NamespacedName).Name)
			}
			slices.Sort(got)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("ReplicaSets with a new count (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBursts sends events about a ReplicaSet, and reconciles it when its alarm fires. The Pods must be counted soon
// after the last event. During a long burst, they must be counted at regular times.
func TestBursts(t *testing.T) {
	every := func(interval, during time.Duration) (events []time.Duration) {
		for at := time.Duration(0); at <= during; at += interval {
			events = append(events, at)
		}
		return events
	}
	for _, c := range []struct {
		reason string
		events []time.Duration // since the first event
		want   []time.Duration // the times at which the Pods are counted, since the first event
	}{
		{"a single event", []time.Duration{0}, []time.Duration{500 * time.Millisecond}},
		{"another event delays the count", []time.Duration{0, 400 * time.Millisecond},
			[]time.Duration{900 * time.Millisecond}},
		{"a later event is another burst", []time.Duration{0, time.Second},
			[]time.Duration{500 * time.Millisecond, 1500 * time.Millisecond}},
		{"a long burst", every(30*time.Millisecond, 25*time.Second),
			[]time.Duration{10 * time.Second, 20*time.Second + 20*time.Millisecond,
				25*time.Second + 490*time.Millisecond}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if diff := cmp.Diff(c.want, countsAfter(t, c.events)); diff != "" {
					t.Errorf("the Pods are counted at (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// countsAfter sends an event of a ReplicaSet at each time in events. It returns the times at which the controller
// counts the Pods. All times are durations since the start of countsAfter.
func countsAfter(t *testing.T, events []time.Duration) (counts []time.Duration) {
	t.Helper()
	clock := clock.RealClock{} // reads the fake time inside synctest.Test
	begin, rs := clock.Now(), types.NamespacedName{Namespace: "default", Name: "web"}
	c := &Controller{client: labelledClient{}, clock: clock, alarms: queue.NewAlarms(clock),
		pods: countedPods{counted: func() { counts = append(counts, clock.Since(begin)) }}}
	woken := priorityqueue.New[reconcile.Request]("test")
	defer woken.ShutDown()
	if err := c.alarms.Source().Start(t.Context(), woken); err != nil {
		t.Fatal(err)
	}
	go func() {
		for request, shutdown := woken.Get(); !shutdown; request, shutdown = woken.Get() {
			if _, err := c.Reconcile(t.Context(), request); err != nil {
				t.Error(err)
			}
			woken.Done(request)
		}
	}()
	for _, at := range events {
		clock.Sleep(at - clock.Since(begin))
		c.wake(rs)
		synctest.Wait()
	}
	clock.Sleep(time.Minute)
	synctest.Wait()
	return counts
}

// labelledClient returns a ReplicaSet whose label is already correct.
type labelledClient struct{ client.Client }

func (labelledClient) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	into.SetLabels(map[string]string{"": "0"})
	return nil
}

// countedPods is a store without Pods. It calls counted when the controller counts them.
type countedPods struct {
	toolscache.Indexer
	counted func()
}

func (p countedPods) IndexKeys(string, string) ([]string, error) {
	p.counted()
	return nil, nil
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

func TestTrim(t *testing.T) {
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
