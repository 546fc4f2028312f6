// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
)

func at(version string) func(*v1beta1.Switch) {
	return func(sw *v1beta1.Switch) { sw.ResourceVersion = version }
}

func TestOverlay(t *testing.T) {
	const deleted = "deleted"
	cases := map[string]struct {
		reason  string
		wrote   *v1beta1.Switch // nil for a deletion
		cached  *v1beta1.Switch // nil if the cache has none
		seen    string
		want    string // the version that is seen, or deleted
		forgets bool
	}{
		"NotYetCreated":  {reason: "what the cache has not heard of is there", wrote: newTestSwitch("m-0", at("5")), seen: "4", want: "5"},
		"SinceDeleted":   {reason: "what the cache has heard of and no longer has is gone", wrote: newTestSwitch("m-0", at("5")), seen: "6", want: deleted, forgets: true},
		"NothingSeen":    {reason: "a cache that cannot say what it has seen is believed, or a ghost could stay for ever", wrote: newTestSwitch("m-0", at("5")), want: deleted, forgets: true},
		"Older":          {reason: "a newer write hides an older object", wrote: newTestSwitch("m-0", at("10")), cached: newTestSwitch("m-0", at("9")), seen: "9", want: "10"},
		"CaughtUp":       {reason: "the cache has it, and is believed", wrote: newTestSwitch("m-0", at("10")), cached: newTestSwitch("m-0", at("10")), seen: "10", want: "10", forgets: true},
		"Overtaken":      {reason: "somebody has changed it since", wrote: newTestSwitch("m-0", at("10")), cached: newTestSwitch("m-0", at("11")), seen: "11", want: "11", forgets: true},
		"StillThere":     {reason: "what was deleted is gone, though the cache still has it", cached: newTestSwitch("m-0", at("9")), seen: "9", want: deleted},
		"DeletionBegun":  {reason: "what somebody's finalizer holds is there, and has its name", cached: newTestSwitch("m-0", at("10"), terminating), seen: "10", want: "10", forgets: true},
		"DeletionIsSeen": {reason: "a deletion that the cache shows is remembered no longer", seen: "12", want: deleted, forgets: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r, m := newRecent(), newMachine(1)
			if c.wrote != nil {
				r.wroteSwitch(m, c.wrote)
			} else {
				r.deletedSwitch(m, "m-0")
			}
			var cached []*v1beta1.Switch
			if c.cached != nil {
				cached = append(cached, c.cached)
			}
			got := deleted
			if merged := r.overlay(m, cached, c.seen); len(merged) == 1 {
				got = merged[0].ResourceVersion
			}
			if got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
			if forgot := len(r.machines) == 0; forgot != c.forgets {
				t.Errorf("%s: forgot is %v", c.reason, forgot)
			}
		})
	}
}

func TestOverlayKeepsMachinesApart(t *testing.T) {
	r, other := newRecent(), newMachine(1)
	other.Name = "other"
	r.wroteSwitch(other, newTestSwitch("other-0", at("5")))
	cached := []*v1beta1.Switch{newTestSwitch("m-0", at("1"))}
	if got := r.overlay(newMachine(1), cached, "1"); !slices.Equal(got, cached) {
		t.Errorf("got %v", namesOf(got))
	}
}

func TestOwnersAreOfOneNamespace(t *testing.T) {
	elsewhere := newTestSwitch("m-0", func(sw *v1beta1.Switch) { sw.Namespace = "elsewhere" })
	here, err := indexByOwner(newTestSwitch("m-0"))
	if err != nil {
		t.Fatal(err)
	}
	there, err := indexByOwner(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(here, there) {
		t.Errorf("a switch that names an owner in another namespace is indexed as %v, as that owner's own", there)
	}
}

func TestLatest(t *testing.T) {
	machine := func(uid, version string) *v1beta1.Machine {
		return newMachine(1, func(m *v1beta1.Machine) {
			m.UID, m.ResourceVersion = "uid-"+m.UID, version
			m.Labels = map[string]string{"uid": uid}
		})
	}
	r := newRecent()
	r.wrote(machine("a", "5"))
	for _, c := range []struct{ reason, version, want string }{
		{"the cache lags behind", "4", "5"},
		{"the cache has caught up", "5", "5"},
		{"the cache has gone on", "6", "6"},
		{"what was caught up with is forgotten", "4", "4"},
	} {
		if got := r.latest(machine("a", c.version)); got.ResourceVersion != c.want {
			t.Errorf("%s: got version %s, want %s", c.reason, got.ResourceVersion, c.want)
		}
	}
	gone := machine("a", "6")
	gone.DeletionTimestamp = new(metav1.NewTime(now))
	r.wrote(gone)
	for _, c := range []struct {
		reason, version string
		want            bool // that it is gone
	}{
		{"the cache has yet to hear that it is gone", "6", true},
		{"it is not", "7", false},
		{"that it was thought to be is forgotten", "6", false},
	} {
		if got := letGo(r.latest(machine("a", c.version))); got != c.want {
			t.Errorf("%s: got %t", c.reason, got)
		}
	}
}

func TestLastFlip(t *testing.T) {
	r, m := newRecent(), newMachine(1)
	cached := []*v1beta1.Switch{newTestSwitch("m-0")}
	r.flipped(m, now)
	for _, c := range []struct {
		reason string
		status time.Duration
		want   time.Time
	}{
		{"a status that has an earlier flip does not make the last one be forgotten", time.Second, now},
		{"one that has it does", 0, time.Time{}},
	} {
		lastFlipped(c.status)(m)
		r.wrote(m)
		r.latest(m) // which the cache has got
		if r.overlay(m, cached, "1"); !r.flipping(m).done.Equal(c.want) {
			t.Errorf("%s: got %s, want %s", c.reason, r.flipping(m).done, c.want)
		}
	}
	if len(r.machines) > 0 {
		t.Error("there is something left to remember")
	}
	r.mayHaveFlipped(m, now)
	if got, want := r.flipping(m), (flipping{attempted: now}); got != want {
		t.Errorf("one may have been flipped: got %+v, want %+v", got, want)
	}
	r.flipped(m, now)
	if got, want := r.flipping(m), (flipping{done: now}); got != want {
		t.Errorf("one was flipped since: got %+v, want %+v", got, want)
	}
	if again := newMachine(1, func(m *v1beta1.Machine) { m.UID = "another" }); r.latest(again) != again || r.flipping(again) != (flipping{}) {
		t.Errorf("a Machine of the same name was flipped, when there was no such Machine: %+v", r.flipping(again))
	}
}

func TestLatestOfDeleted(t *testing.T) {
	deleted := func(finalizers ...string) *v1beta1.Machine {
		return newMachine(1, func(m *v1beta1.Machine) {
			m.ResourceVersion, m.DeletionTimestamp, m.Finalizers = "5", new(metav1.NewTime(now)), finalizers
		})
	}
	r := newRecent()
	r.wrote(deleted())
	// The API server answers the removal of the last finalizer with the version that it removed.
	if got := r.latest(deleted(v1beta1.MachineFinalizer)); len(got.Finalizers) > 0 {
		t.Error("a Machine that was let go is to be let go again")
	}
	again := newMachine(1, func(m *v1beta1.Machine) { m.UID, m.ResourceVersion = "another", "4" })
	r.wroteSwitch(again, newTestSwitch("m-0", at("10")))
	if got := r.latest(again); got != again || len(r.machines) > 0 {
		t.Errorf("a Machine of the same name got %+v, with %d machines known", got, len(r.machines))
	}
}
