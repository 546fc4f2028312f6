// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/test/sim"
)

// A lag is what the operator's caches do not see. An operator that starts asks for what is certainly the newest, also of an API
// server that lags itself, and has older lists at hand.
type lag struct {
	kind     string // of which cache; of all if empty
	revision int64  // it stops at this one, until the end of the step after the one in which that was written
	restart  bool   // another operator starts then, and knows no more after it has read what there is
	behind   int64  // by how many revisions its API server lags at that time
	calls    int    // if not zero, it goes on after so many calls
	steady   bool   // it does not stop, but is always so many revisions behind, for a few seconds
}

// A miss is an event of which the operator does not hear, or only later.
type miss struct {
	revision int64
	late     int    // it is told of after so many later ones, or never if zero
	kind     string // of this kind
}

func (m miss) String() string {
	if m.late == 0 {
		return fmt.Sprintf("revision %d is not heard of", m.revision)
	}
	return fmt.Sprintf("revision %d is heard of after %d later ones of %s", m.revision, m.late, m.kind)
}

func (l lag) String() string {
	switch {
	case l.steady:
		return fmt.Sprintf("the cache of %q is always %d revisions behind", l.kind, l.behind)
	case l.restart:
		return fmt.Sprintf("at revision %d, another operator starts, whose cache of %q stops when it is filled, its API server %d behind", l.revision, l.kind, l.behind)
	}
	return fmt.Sprintf("the cache of %q stops at revision %d", l.kind, l.revision)
}

// TestStale has the caches stop at each revision, one by one and all of them, some of them those of another operator, and be always
// some revisions behind.
func TestStale(t *testing.T) {
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			want := l.live(t, conditions{})
			var cases []conditions
			for _, kind := range l.caches() {
				for behind := range int64(5) {
					cases = append(cases, conditions{lag: &lag{kind: kind, steady: true, behind: behind + 1}})
				}
				for _, revision := range want.revisions {
					cases = append(cases, conditions{lag: &lag{kind: kind, revision: revision}})
					for _, behind := range l.behind() {
						cases = append(cases, conditions{lag: &lag{kind: kind, revision: revision, restart: true, behind: behind}})
					}
				}
			}
			inParallel(t, cases, l.endAlike(want))
		})
	}
}

// TestTimeTravel has another operator start at each revision of a short life of each controller, on an API server that knows no
// more than what there was at each revision before that.
func TestTimeTravel(t *testing.T) {
	for _, l := range briefLives {
		t.Run(l.name, func(t *testing.T) {
			want := l.live(t, conditions{})
			var cases []conditions
			for i, revision := range want.revisions {
				for _, old := range want.revisions[:i] {
					cases = append(cases, conditions{lag: &lag{revision: revision, restart: true, behind: revision - old}})
				}
			}
			inParallel(t, cases, l.endAlike(want))
		})
	}
}

// two is a life of two Machines of two switches.
var two = life{
	name: "two machines", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "create another one", do: create(machineOf("n", 2))},
		{what: "turn a switch up", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "give one away", do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"n"}}}`)},
		{what: "scale up", do: patch(machine("n"), `{"spec":{"switches":{"count":3}}}`)},
		{what: "delete a switch", do: remove(switchOf("n-1"))},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":1}}}`)},
		{what: "delete both", do: func(ctx context.Context, c client.Client) error {
			return errors.Join(remove(machine("n"))(ctx, c), remove(machine("m"))(ctx, c))
		}},
	},
}

// TestMissed has each event and each two of them never be heard of, until all is read anew.
func TestMissed(t *testing.T) {
	want := two.live(t, conditions{})
	judge(t, conditions{}, want)
	inParallel(t, inPairs(want.revisions, func(revision int64) []miss { return []miss{{revision: revision}} }), two.endAlike(want))
}

// TestReordered has each event and each two of them be heard of late, after later ones of the one kind or the other.
//
// A watch tells of changes of one kind in their order, and client-go keeps what it was told last, even if it is older: until all
// is read anew, its cache shows what was there before, also what is gone since. That stands for API servers of which one knows less
// than the one before it. Of two kinds, either may be ahead.
func TestReordered(t *testing.T) {
	want := two.live(t, conditions{})
	judge(t, conditions{}, want)
	var cases []conditions
	for _, kind := range two.kinds {
		for late := range 4 {
			for _, revision := range want.revisions {
				cases = append(cases, conditions{missed: []miss{{revision, late + 1, kind}}})
			}
		}
	}
	inParallel(t, append(cases, inPairs(want.revisions, func(revision int64) (late []miss) {
		for _, kind := range two.kinds {
			late = append(late, miss{revision, 1, kind})
		}
		return late
	})...), two.endAlike(want))
}

// TestLate has an event be told of after a later one.
func TestLate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		late := w.Connect("late")
		late.Miss(func(change sim.Change, since []sim.Change) bool {
			return change.Object.GetName() == "a" && count(since, "Machine") == 0
		})
		c, err := client.NewWithWatch(late.Config(), client.Options{Scheme: w.Admin.Scheme(), Mapper: w.Mapper()})
		must(t, err)
		events, err := c.Watch(t.Context(), &v1beta1.MachineList{})
		must(t, err)
		defer events.Stop()
		for _, name := range []string{"a", "b", "c"} {
			must(t, w.Admin.Create(t.Context(), machine(name)))
		}
		for _, want := range []string{"b", "a", "c"} {
			if got := (<-events.ResultChan()).Object.(*v1beta1.Machine).Name; got != want {
				t.Errorf("it is told of %s, and not of %s", got, want)
			}
		}
	})
}

// inPairs are each of some revisions and each two of them, missed in the same of some ways.
func inPairs(revisions []int64, ways func(int64) []miss) (cases []conditions) {
	for i, revision := range revisions {
		for way, m := range ways(revision) {
			cases = append(cases, conditions{missed: []miss{m}})
			for _, other := range revisions[:i] {
				cases = append(cases, conditions{missed: []miss{ways(other)[way], m}})
			}
		}
	}
	return cases
}

// TestDeletionUnheard deletes what has got its first child, or as many as a quota allows, of which the operator does not hear for a
// minute: it must not make children as fast as the garbage collector deletes them.
func TestDeletionUnheard(t *testing.T) {
	foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
	for _, test := range []struct {
		kind    string
		parent  client.Object
		limited bool
	}{
		{"Machine", machineOf("m", 4), false},
		{"Machine", machineOf("m", 200), true}, // more than are made in one pass
		{"VirtualMachine", vm(), false},
	} {
		for reason, deletions := range map[string][]func(context.Context, client.Client) error{
			"in the foreground":     {remove(test.parent, foreground)},
			"without its finalizer": {patch(test.parent, `{"metadata":{"finalizers":null}}`), remove(test.parent)},
		} {
			t.Run(fmt.Sprintf("%s %s, a quota: %t", test.kind, reason, test.limited), func(t *testing.T) {
				u := unheard{deletions: deletions, limited: test.limited}
				inWorld(t, func(t *testing.T, w *sim.World) {
					t.Helper()
					testDeletionUnheard(t, w, test.kind, test.parent, u)
				})
			})
		}
	}
}

// mostUnheard are the writes of an operator that does not hear of a deletion for a minute: four switches, or a server, the
// finalizer's end, and what is refused, again and again with growing delays.
const mostUnheard = 20

// An unheard deletion is one that the operator does not hear of.
type unheard struct {
	fog       *fog
	deletions []func(context.Context, client.Client) error
	limited   bool // it comes when there is as much as there can be, not with the first child
	done      bool
	writes    int // since then
}

// do deletes.
func (u *unheard) do(ctx context.Context) error {
	w := u.fog.world
	u.done, u.fog.lag.revision = true, w.Revision()
	w.Hold(func() { u.fog.lifted = false })
	for _, do := range u.deletions {
		if err := do(ctx, w.Admin); err != nil {
			return err
		}
	}
	return nil
}

// live has the operator work for what is to be deleted.
func (u *unheard) live(ctx context.Context, parent client.Object) error {
	w := u.fog.world
	if !u.limited {
		return errors.Join(w.Admin.Create(ctx, parent), w.Pass(time.Minute))
	}
	return errors.Join(w.Admin.Create(ctx, quotaOf(1)), w.Admin.Create(ctx, parent), w.Pass(quiet), u.do(ctx), w.Pass(time.Minute))
}

func testDeletionUnheard(t *testing.T, w *sim.World, kind string, parent client.Object, u unheard) {
	t.Helper()
	u.fog = &fog{lag: &lag{kind: kind}, world: w, lifted: true}
	w.Choose = func(calls []sim.Call) (int, sim.Fate) {
		if !u.done && !u.limited && calls[0].Verb == "create" {
			must(t, u.do(t.Context()))
		}
		if u.done && calls[0].Writes() {
			u.writes++
		}
		return 0, sim.Fate{}
	}
	_, err := w.StartSeeing(u.fog.sees, operators[0], strings.ToLower(kind))
	must(t, err)
	must(t, u.live(t.Context(), parent.DeepCopyObject().(client.Object)))
	if !u.done || u.writes > mostUnheard {
		t.Errorf("%d writes", u.writes)
	}
	u.fog.lift()
	must(t, w.Pass(quiet))
	must(t, left(w, kind))
}

// TestChangeUnheard has a user change a switch that is up, which the cache does not show. The operator's write is rejected and
// retried. When the cache shows the change, the switch is turned down.
func TestChangeUnheard(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		f := &fog{lag: &lag{kind: "Switch"}, world: w, lifted: true}
		w.Choose = func(calls []sim.Call) (int, sim.Fate) {
			if call := calls[0]; f.lifted && f.lag.revision == 0 && call.Kind.Kind == "Switch" && call.Subresource == "status" {
				f.lag.revision = w.Revision()
				w.Hold(func() { f.lifted = false })
				must(t, patch(switchOf("m-0"), `{"metadata":{"annotations":{"example.com/changed":"true"}}}`)(t.Context(), w.Admin))
			}
			return 0, sim.Fate{}
		}
		_, err := w.StartSeeing(f.sees, operators[0], "machine")
		must(t, err)
		must(t, errors.Join(w.Admin.Create(t.Context(), machineOf("m", 2)), w.Pass(quiet)))
		must(t, errors.Join(patch(switchOf("m-0"), `{"spec":{"position":"up"}}`)(t.Context(), w.Admin), w.Pass(time.Minute)))
		if f.lifted {
			t.Fatal("the operator wrote no status of a switch")
		}
		before := w.Revision()
		f.lift()
		must(t, w.Pass(6*time.Second))
		sw := switchOf("m-0")
		must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(sw), sw))
		if sw.Spec.Position != v1beta1.PositionDown {
			t.Errorf("it is %s; writes since revision %d: %d", sw.Spec.Position, before, w.Revision()-before)
		}
	})
}

// TestServerChangedUnheard changes a VirtualMachine's Pod, which the cache does not show. The operator's writes are rejected.
// When the cache shows the change, the operator does what its user has asked for.
func TestServerChangedUnheard(t *testing.T) {
	for _, tt := range []struct {
		step step
		done func(*corev1.Pod) bool
	}{
		{step{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)}, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }},
		{deleteServer, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }},
		{resizeServer, func(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Resources.Limits.Cpu().Value() == 2 }},
	} {
		t.Run(tt.step.what, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *sim.World) {
				t.Helper()
				f := &fog{lag: &lag{kind: "Pod"}, world: w, lifted: true}
				_, err := w.StartSeeing(f.sees, operators[0], virtualmachine.Name)
				must(t, err)
				for _, step := range []step{createServer, runServer(1)} {
					must(t, errors.Join(step.do(t.Context(), w.Admin), w.Pass(quiet)))
				}
				f.lag.revision = w.Revision()
				w.Hold(func() { f.lifted = false })
				must(t, patch(server, `{"metadata":{"annotations":{"example.com/changed":"true"}}}`)(t.Context(), w.Admin))
				must(t, errors.Join(tt.step.do(t.Context(), w.Admin), w.Pass(time.Second)))
				pod := server.DeepCopy()
				must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
				if tt.done(pod) {
					t.Errorf("a write that was based on stale data was accepted: %v", pod)
				}
				f.lift()
				must(t, w.Pass(time.Second))
				must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
				if !tt.done(pod) {
					t.Errorf("it is not done: %v", pod)
				}
			})
		})
	}
}

// fog is what a lag, or what is missed, does to a world.
type fog struct {
	lag       *lag
	missed    []miss
	world     *sim.World
	known     int64 // the revision that a cache which is always behind knows
	restarted bool
	steps     int // that have ended since it came
	calls     int // that were served since it came
	lifted    bool
}

// sees is the view of the operator.
func (f *fog) sees(k *sim.Kind, newest int64) int64 {
	switch {
	case f.lag == nil || f.lifted || f.lag.kind != "" && f.lag.kind != k.Kind || f.lag.restart && !f.restarted:
		return newest
	case f.lag.steady:
		return max(f.known, newest-f.lag.behind)
	}
	return min(max(1, f.lag.revision-f.lag.behind), newest)
}

// misses tells whether the operator does not hear of a change, or not yet.
func (f *fog) misses(change sim.Change, since []sim.Change) bool {
	if len(since) == 0 && f.lifted {
		return false
	}
	for _, m := range f.missed {
		if m.revision == change.Revision {
			return m.late == 0 || count(since, m.kind) < m.late
		}
	}
	return false
}

func count(changes []sim.Change, kind string) (n int) {
	for _, change := range changes {
		if change.Kind.Kind == kind {
			n++
		}
	}
	return n
}

// has reports whether it has come, and can go.
func (f *fog) has() bool {
	if f.lag != nil {
		return !f.lag.steady && f.world.Revision() >= f.lag.revision
	}
	return len(f.missed) > 0 && f.world.Revision() >= f.missed[len(f.missed)-1].revision
}

// catchUp has a cache that is always behind come to know what there is every few seconds.
func (f *fog) catchUp(ctx context.Context, o *sim.Operator) {
	for behind := true; behind; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(4 * time.Second):
		}
		newest := f.world.Revision()
		f.world.Hold(func() { f.known, behind = newest, !f.lifted })
		o.Look()
	}
}

// restart reports whether the operator is to start anew, which it does once.
func (f *fog) restart() bool {
	now := f.lag != nil && f.lag.restart && !f.restarted && f.world.Revision() >= f.lag.revision
	f.world.Hold(func() { f.restarted = f.restarted || now })
	return now
}

// call counts a call.
func (f *fog) call() {
	if f.lag == nil || !f.has() {
		return
	}
	if f.calls++; f.calls == f.lag.calls {
		f.lift()
	}
}

// end is the end of a step.
func (f *fog) end() {
	if !f.has() {
		return
	}
	if f.steps++; f.steps > 1 {
		f.lift()
	}
}

// lift has the caches see all there is.
func (f *fog) lift() {
	f.world.Hold(func() { f.lifted = true })
	for _, o := range f.world.Operators {
		o.Look()
		o.Reread()
	}
}
