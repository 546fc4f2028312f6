// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// TestMissingNames has a plan that creates two Switches and knows only m-0. After the decision, the cache has received
// m-1.
func TestMissingNames(t *testing.T) {
	for _, c := range []struct {
		reason string
		unseen *v1beta1.Switch
		want   []string
	}{
		{"the API server must reject a Switch that exists already", newTestSwitch("m-1"), []string{"m-1", "m-2"}},
		{"a Switch that is being deleted must be replaced", newTestSwitch("m-1", terminating), []string{"m-2", "m-3"}},
		{"the name of another owner's Switch is taken", newTestSwitch("m-1", func(sw *v1beta1.Switch) {
			sw.OwnerReferences = nil
		}), []string{"m-2", "m-3"}},
	} {
		known := newTestSwitch("m-0")
		switches := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, switchIndexers)
		for _, sw := range []*v1beta1.Switch{known, c.unseen} {
			if err := switches.Add(sw); err != nil {
				t.Fatal(err)
			}
		}
		a := &action{Controller: &Controller{switches: switches}, machine: newMachine(3)}
		var got []string
		for _, sw := range a.missing(plan{mine: []*v1beta1.Switch{known}, create: 2}) {
			got = append(got, sw.Name)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: names (-want +got):\n%s", c.reason, diff)
		}
	}
}

// A rejecting client answers each deletion with a conflict.
type rejecting struct {
	client.Client
	sent []*metav1.Preconditions
}

func (r *rejecting) Delete(_ context.Context, o client.Object, options ...client.DeleteOption) error {
	r.sent = append(r.sent, (&client.DeleteOptions{}).ApplyOptions(options).Preconditions)
	return apierrors.NewConflict(schema.GroupResource{Resource: "switches"}, o.GetName(), nil)
}

// TestDeletionHasPreconditions checks the UID and the resourceVersion in a deletion. Without them, the controller could
// delete another Switch with the same name, or a Switch that has another owner now.
func TestDeletionHasPreconditions(t *testing.T) {
	api := &rejecting{}
	a := &action{Controller: &Controller{client: api, slots: semaphore.NewWeighted(1)}, machine: newMachine(1)}
	sw := newTestSwitch("m-1")
	sw.UID, sw.ResourceVersion = "uid", "7"
	if err := a.delete(t.Context(), []*v1beta1.Switch{sw}); !apierrors.IsConflict(err) || a.wrote() {
		t.Errorf("got the error %v, want a conflict; the action has written something: %t", err, a.wrote())
	}
	want := []*metav1.Preconditions{{UID: &sw.UID, ResourceVersion: &sw.ResourceVersion}}
	if diff := cmp.Diff(want, api.sent); diff != "" {
		t.Errorf("preconditions (-want +got):\n%s", diff)
	}
}

// An accepting client accepts each patch.
type accepting struct{ client.Client }

func (accepting) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return nil
}

// TestLowerIsRemembered sets the position of a Machine back to down. A user sets it to up before the next reconcile.
func TestLowerIsRemembered(t *testing.T) {
	m := newMachine(1, position(v1beta1.PositionUp, v1beta1.PositionUp))
	a := &action{Controller: &Controller{client: accepting{}}, machine: m}
	if err := a.lower(t.Context(), true); err != nil || !a.remembered(m).lowered {
		t.Errorf("got the error %v; the controller must remember that it has set the position to down", err)
	}
}

// A failing client answers each change of a spec with an error, and keeps the statuses that it receives.
type failing struct {
	client.Client
	err      error
	statuses []v1beta1.SwitchStatus
}

func (f *failing) Status() client.SubResourceWriter { return &failingStatus{failing: f} }

func (f *failing) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return f.err
}

type failingStatus struct {
	client.SubResourceWriter
	*failing
}

func (f *failingStatus) Patch(
	_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption,
) error {
	f.statuses = append(f.statuses, o.(*v1beta1.Switch).Status)
	return nil
}

// TestFailedFlip checks when the operator tries again to turn a Switch down after an error.
func TestFailedFlip(t *testing.T) {
	webhook := errors.New(`failed calling webhook "policy.example.com": connection refused`)
	refused := []v1beta1.SwitchStatus{{ObservedGeneration: 1, SeenAt: microTime(now.Add(-5 * time.Second))}}
	for _, c := range []struct {
		reason    string
		err       error
		statuses  []v1beta1.SwitchStatus // a flip with a delay of 10 s is due again after 5 s
		attempted bool                   // the flip interval begins
	}{
		{"the API server rejects the change", apierrors.NewBadRequest("no"), refused, false},
		{"the API server cannot call a webhook", apierrors.NewInternalError(webhook), nil, false},
		{"the API server may have executed the change", apierrors.NewInternalError(io.EOF), nil, true},
		{"the Switch has changed", apierrors.NewConflict(schema.GroupResource{}, "m-0", io.EOF), nil, false},
	} {
		api := &failing{err: c.err}
		a := &action{
			Controller: &Controller{client: api, clock: clocktesting.NewFakePassiveClock(now)},
			machine:    newMachine(1, flipTimes(10, 60)),
		}
		sw := newTestSwitch("m-0", seen(10*time.Second))
		sw.Generation = 1
		if err := a.flip(t.Context(), []dueSwitch{{sw, now}}); !errors.Is(err, c.err) {
			t.Errorf("%s: got the error %v", c.reason, err)
		}
		if diff := cmp.Diff(c.statuses, api.statuses); diff != "" {
			t.Errorf("%s: statuses (-want +got):\n%s", c.reason, diff)
		}
		if got := !a.attempted.Of(a.machine).IsZero(); got != c.attempted {
			t.Errorf("%s: got attempted %t, want %t", c.reason, got, c.attempted)
		}
	}
}

// TestSettle checks the reconcile after a wait for the cache has timed out. It must compare the cache with the API
// server.
func TestSettle(t *testing.T) {
	older, newer := newTestSwitch("m-0"), newTestSwitch("m-0")
	older.ResourceVersion, newer.ResourceVersion = "7", "8"
	for _, c := range []struct {
		reason          string
		cached, current *v1beta1.Switch // in the cache and in the API server; nil for none
		wantErr         bool
	}{
		{"the cache is older", older, newer, true},
		{"the cache lacks the Switch", nil, newer, true},
		{"the cache still has a deleted Switch", older, nil, true},
		{"the cache has the last change", newer, newer, false},
		{"the cache is newer than the answer", newer, older, false},
		{"the Switch was deleted meanwhile", nil, nil, false},
	} {
		switches := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, switchIndexers)
		if c.cached != nil {
			if err := switches.Add(c.cached); err != nil {
				t.Fatal(err)
			}
		}
		cache, m := &waiting{err: context.DeadlineExceeded}, newMachine(1)
		controller := &Controller{client: cache, reader: stored{sw: c.current}, switches: switches}
		controller.unsettled.Keep(m, ownWrites{keys: []client.ObjectKey{client.ObjectKeyFromObject(newer)}})
		if err := controller.settle(t.Context(), m); !errors.Is(err, cache.err) {
			t.Errorf("%s: the wait returned the error %v, want %v", c.reason, err, cache.err)
		}
		if err := controller.settle(t.Context(), m); (err != nil) != c.wantErr || cache.reads != 1 {
			t.Errorf("%s: the next reconcile got the error %v, want an error: %t; %d waits, want 1",
				c.reason, err, c.wantErr, cache.reads)
		}
	}
}

// waiting is a client whose reads wait for the cache until they time out.
type waiting struct {
	client.Client
	err   error
	reads int
}

func (w *waiting) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	w.reads++
	return w.err
}

// stored reads an API server that has one Switch, or none.
type stored struct {
	client.Reader
	sw *v1beta1.Switch
}

func (s stored) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if s.sw != nil {
		list.(*v1beta1.SwitchList).Items = []v1beta1.Switch{*s.sw}
	}
	return nil
}
