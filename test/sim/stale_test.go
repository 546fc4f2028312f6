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

// A lag limits the revisions that the operator's caches show. Lists of a starting operator are consistent reads, even if
// its API server lags.
type lag struct {
	kind     string // the kind whose cache lags; "" for all kinds
	revision int64  // the cache stops at this revision, and resumes at the end of the next step
	restart  bool   // the operator restarts at this revision, and its cache stops after the first list
	behind   int64  // how many revisions the API server lags after the restart
	calls    int    // if not zero, the cache resumes after this number of calls
	gradual  bool   // the cache resumes one revision at a time
	steady   bool   // the cache never stops: it lags by behind revisions, and catches up every few seconds
}

// A miss is an event that the operator never receives, or receives late.
type miss struct {
	revision int64
	late     int    // the number of later events that arrive first; 0 if the event never arrives
	kind     string // the kind of these later events
}

func (m miss) String() string {
	if m.late == 0 {
		return fmt.Sprintf("the event of revision %d is missed", m.revision)
	}
	return fmt.Sprintf("the event of revision %d arrives after %d later events of %s", m.revision, m.late, m.kind)
}

func (l lag) String() string {
	switch {
	case l.steady:
		return fmt.Sprintf("the cache of %q always lags %d revisions", l.kind, l.behind)
	case l.restart:
		return fmt.Sprintf("restart at revision %d; the cache of %q then stops; the API server lags %d revisions",
			l.revision, l.kind, l.behind)
	}
	text := fmt.Sprintf("the cache of %q stops at revision %d", l.kind, l.revision)
	if l.gradual {
		return text + " and resumes one revision at a time"
	}
	return text
}

// TestStale stops the cache of one kind or of all kinds at each revision. It does this for a running operator and for
// an operator that has restarted. The cache resumes with all later revisions at once, or with one at a time. The test
// also runs with caches that always lag some revisions.
func TestStale(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			want := s.run(t, conditions{})
			var cases []conditions
			for _, kind := range s.caches() {
				for behind := range int64(5) {
					cases = append(cases, conditions{lag: &lag{kind: kind, steady: true, behind: behind + 1}})
				}
				for _, revision := range want.revisions {
					cases = append(cases, conditions{lag: &lag{kind: kind, revision: revision}},
						conditions{lag: &lag{kind: kind, revision: revision, gradual: true}})
					for _, behind := range s.behind() {
						cases = append(cases,
							conditions{lag: &lag{kind: kind, revision: revision, restart: true, behind: behind}})
					}
				}
			}
			inParallel(t, cases, s.sameEndState(want))
		})
	}
}

// TestTimeTravel restarts the operator at each revision of each short scenario. Then the operator reads from an API
// server with older data. The test repeats this for each earlier revision.
func TestTimeTravel(t *testing.T) {
	for _, s := range shortScenarios {
		t.Run(s.name, func(t *testing.T) {
			want := s.run(t, conditions{})
			var cases []conditions
			for i, revision := range want.revisions {
				for _, old := range want.revisions[:i] {
					cases = append(cases,
						conditions{lag: &lag{revision: revision, restart: true, behind: revision - old}})
				}
			}
			inParallel(t, cases, s.sameEndState(want))
		})
	}
}

// twoMachines is a scenario with two Machines of two switches.
var twoMachines = scenario{
	name: "two machines", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "create another Machine", do: create(machineOf("n", 2))},
		{what: "turn a switch up", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "relabel a switch for the other Machine",
			do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"n"}}}`)},
		{what: "scale up", do: patch(machine("n"), `{"spec":{"switches":{"count":3}}}`)},
		{what: "delete a switch", do: remove(switchOf("n-1"))},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":1}}}`)},
		{what: "delete both", do: func(ctx context.Context, c client.Client) error {
			return errors.Join(remove(machine("n"))(ctx, c), remove(machine("m"))(ctx, c))
		}},
	},
}

// TestMissed drops each event and each pair of events, each in its own run. The operator sees these changes only after
// its next list. A real watch does not drop events: it delivers all events in order, or it ends. So the test allows the
// exception in missesCreation.
func TestMissed(t *testing.T) {
	want := twoMachines.run(t, conditions{})
	reportViolations(t, conditions{}, want)
	inParallel(t, inPairs(want.revisions, func(revision int64) []miss { return []miss{{revision: revision}} }),
		twoMachines.sameEndState(want))
}

// TestReordered delivers each event, and each pair of events, after later events of one of the two kinds.
//
// A real watch delivers the changes of one kind in order. If events arrive in another order, client-go keeps the last
// received event, even if this event is older. Then its cache shows old data, including deleted objects, until the next
// list. This simulates an operator that connects to an API server with older data. It also simulates a cache of one
// kind that is newer than the cache of the other kind.
func TestReordered(t *testing.T) {
	want := twoMachines.run(t, conditions{})
	reportViolations(t, conditions{}, want)
	var cases []conditions
	for _, kind := range twoMachines.kinds {
		for late := range 4 {
			for _, revision := range want.revisions {
				cases = append(cases, conditions{missed: []miss{{revision, late + 1, kind}}})
			}
		}
	}
	inParallel(t, append(cases, inPairs(want.revisions, func(revision int64) (late []miss) {
		for _, kind := range twoMachines.kinds {
			late = append(late, miss{revision, 1, kind})
		}
		return late
	})...), twoMachines.sameEndState(want))
}

// TestLateEvent checks that the simulator can deliver an event after a later one.
func TestLateEvent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		late := w.Connect("late")
		late.SkipEvents(func(change sim.Change, since []sim.Change) bool {
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
				t.Errorf("got the event of %s, want %s", got, want)
			}
		}
	})
}

// inPairs returns a case for each revision and for each pair of revisions. Both events of a pair have the same variant.
func inPairs(revisions []int64, variants func(int64) []miss) (cases []conditions) {
	for i, revision := range revisions {
		for variant, m := range variants(revision) {
			cases = append(cases, conditions{missed: []miss{m}})
			for _, other := range revisions[:i] {
				cases = append(cases, conditions{missed: []miss{variants(other)[variant], m}})
			}
		}
	}
	return cases
}

// TestDeletionNotInCache deletes an object while the operator creates its first child, or after the operator has
// created all children that a quota allows. The cache does not show the deletion for a minute. Meanwhile, the garbage
// collector deletes the children. The operator must not keep replacing them.
func TestDeletionNotInCache(t *testing.T) {
	foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
	for _, test := range []struct {
		kind    string
		parent  client.Object
		limited bool
	}{
		{"Machine", machineOf("m", 4), false},
		{"Machine", machineOf("m", 200), true}, // more switches than one reconcile creates
		{"VirtualMachine", vm(), false},
	} {
		for name, deletions := range map[string][]func(context.Context, client.Client) error{
			"foreground":        {remove(test.parent, foreground)},
			"finalizer removed": {patch(test.parent, `{"metadata":{"finalizers":null}}`), remove(test.parent)},
		} {
			t.Run(fmt.Sprintf("%s, %s, quota %t", test.kind, name, test.limited), func(t *testing.T) {
				u := staleDeletion{deletions: deletions, limited: test.limited}
				inWorld(t, func(t *testing.T, w *sim.World) {
					t.Helper()
					testDeletionNotInCache(t, w, test.kind, test.parent, u)
				})
			})
		}
	}
}

// maxWritesWhileStale is the maximum number of writes in the minute in which the cache does not show the deletion. The
// operator creates four switches or a Pod, and retries rejected writes with growing delays.
const maxWritesWhileStale = 20

// A staleDeletion is a deletion that the operator's cache does not show.
type staleDeletion struct {
	view      *staleView
	deletions []func(context.Context, client.Client) error
	limited   bool // delete when the quota is used up, not at the first child
	done      bool
	writes    int // writes by the operator since the deletion
}

// delete stops the cache and deletes the parent.
func (u *staleDeletion) delete(ctx context.Context) error {
	w := u.view.world
	u.done, u.view.lag.revision = true, w.Revision()
	w.Locked(func() { u.view.ended = false })
	for _, do := range u.deletions {
		if err := do(ctx, w.Admin); err != nil {
			return err
		}
	}
	return nil
}

// run creates the parent and gives the operator time to react.
func (u *staleDeletion) run(ctx context.Context, parent client.Object) error {
	w := u.view.world
	if !u.limited {
		return errors.Join(w.Admin.Create(ctx, parent), w.Pass(time.Minute))
	}
	return errors.Join(w.Admin.Create(ctx, quotaOf(1)), w.Admin.Create(ctx, parent), w.Pass(settleTime), u.delete(ctx),
		w.Pass(time.Minute))
}

func testDeletionNotInCache(t *testing.T, w *sim.World, kind string, parent client.Object, u staleDeletion) {
	t.Helper()
	u.view = &staleView{lag: &lag{kind: kind}, world: w, ended: true}
	w.Choose = func(calls []sim.Call) (int, sim.Outcome) {
		if !u.done && !u.limited && calls[0].Verb == "create" {
			must(t, u.delete(t.Context()))
		}
		if u.done && calls[0].Writes() {
			u.writes++
		}
		return 0, sim.Outcome{}
	}
	_, err := w.StartWithView(u.view.viewOf, operators[0], strings.ToLower(kind))
	must(t, err)
	must(t, u.run(t.Context(), parent.DeepCopyObject().(client.Object)))
	if !u.done || u.writes > maxWritesWhileStale {
		t.Errorf("deleted: %t; %d writes since then, want at most %d", u.done, u.writes, maxWritesWhileStale)
	}
	u.view.end()
	must(t, w.Pass(settleTime))
	must(t, left(w, kind))
}

// TestChangeNotInCache changes a switch that is up. The cache does not show the change. The operator's write is
// rejected and retried. When the cache shows the change, the operator turns the switch down.
func TestChangeNotInCache(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		v := &staleView{lag: &lag{kind: "Switch"}, world: w, ended: true}
		w.Choose = func(calls []sim.Call) (int, sim.Outcome) {
			if call := calls[0]; v.ended && v.lag.revision == 0 && call.Kind.Kind == "Switch" &&
				call.Subresource == "status" {
				v.lag.revision = w.Revision()
				w.Locked(func() { v.ended = false })
				must(t, patch(switchOf("m-0"),
					`{"metadata":{"annotations":{"example.com/changed":"true"}}}`)(t.Context(), w.Admin))
			}
			return 0, sim.Outcome{}
		}
		_, err := w.StartWithView(v.viewOf, operators[0], "machine")
		must(t, err)
		must(t, errors.Join(w.Admin.Create(t.Context(), machineOf("m", 2)), w.Pass(settleTime)))
		must(t, errors.Join(patch(switchOf("m-0"), `{"spec":{"position":"up"}}`)(t.Context(), w.Admin),
			w.Pass(time.Minute)))
		if v.ended {
			t.Fatal("the operator wrote no status of a switch")
		}
		before := w.Revision()
		v.end()
		must(t, w.Pass(6*time.Second))
		sw := switchOf("m-0")
		must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(sw), sw))
		if sw.Spec.Position != v1beta1.PositionDown {
			t.Errorf("the switch is %s; writes since revision %d: %d", sw.Spec.Position, before, w.Revision()-before)
		}
	})
}

// TestPodChangeNotInCache changes a VirtualMachine's Pod. The cache does not show the change. The operator's writes are
// rejected. When the cache shows the change, the operator must apply the user's request.
func TestPodChangeNotInCache(t *testing.T) {
	for _, tt := range []struct {
		step step
		done func(*corev1.Pod) bool
	}{
		{step{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
			func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }},
		{deleteVM, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }},
		{resizeVM, func(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Resources.Limits.Cpu().Value() == 2 }},
	} {
		t.Run(tt.step.what, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *sim.World) {
				t.Helper()
				v := &staleView{lag: &lag{kind: "Pod"}, world: w, ended: true}
				_, err := w.StartWithView(v.viewOf, operators[0], virtualmachine.Name)
				must(t, err)
				for _, step := range []step{createVM, runPod(1)} {
					must(t, errors.Join(step.do(t.Context(), w.Admin), w.Pass(settleTime)))
				}
				v.lag.revision = w.Revision()
				w.Locked(func() { v.ended = false })
				must(t, patch(vmPod, `{"metadata":{"annotations":{"example.com/changed":"true"}}}`)(t.Context(),
					w.Admin))
				must(t, errors.Join(tt.step.do(t.Context(), w.Admin), w.Pass(time.Second)))
				pod := vmPod.DeepCopy()
				must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
				if tt.done(pod) {
					t.Errorf("a write that was based on stale data was accepted: %v", pod)
				}
				v.end()
				must(t, w.Pass(time.Second))
				must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
				if !tt.done(pod) {
					t.Errorf("the operator did not update the Pod: %v", pod)
				}
			})
		})
	}
}

// A staleView applies a lag or missed events to a world.
type staleView struct {
	lag       *lag
	missed    []miss
	world     *sim.World
	known     int64 // the revision that a steady or gradual lag shows
	restarted bool
	steps     int // steps that have ended since the lag began
	calls     int // calls that were served since the lag began
	ended     bool
}

// viewOf is the View of the operator. It returns the revision of a kind that the operator's cache shows.
func (v *staleView) viewOf(k *sim.Kind, newest int64) int64 {
	switch {
	case v.lag == nil || v.ended || v.lag.kind != "" && v.lag.kind != k.Kind || v.lag.restart && !v.restarted:
		return newest
	case v.lag.steady:
		return max(v.known, newest-v.lag.behind)
	}
	return min(max(1, v.lag.revision-v.lag.behind, v.known), newest)
}

// misses reports whether the operator must not receive a change now. since has the later changes.
func (v *staleView) misses(change sim.Change, since []sim.Change) bool {
	if len(since) == 0 && v.ended {
		return false
	}
	for _, m := range v.missed {
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

// reached reports whether the lag has begun, or whether the last missed event has occurred. Before that, the stale view
// cannot end.
func (v *staleView) reached() bool {
	if v.lag != nil {
		return !v.lag.steady && v.world.Revision() >= v.lag.revision
	}
	return len(v.missed) > 0 && v.world.Revision() >= v.missed[len(v.missed)-1].revision
}

// catchUpPeriodically updates a cache with a steady lag every few seconds.
func (v *staleView) catchUpPeriodically(ctx context.Context, o *sim.Operator) {
	for behind := true; behind; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(4 * time.Second):
		}
		newest := v.world.Revision()
		v.world.Locked(func() { v.known, behind = newest, !v.ended })
		o.WakeWatches()
	}
}

// shouldRestart reports whether the operator must restart now. It returns true only one time.
func (v *staleView) shouldRestart() bool {
	now := v.lag != nil && v.lag.restart && !v.restarted && v.world.Revision() >= v.lag.revision
	v.world.Locked(func() { v.restarted = v.restarted || now })
	return now
}

// callServed counts a call since the lag began, and ends the stale view when lag.calls is reached.
func (v *staleView) callServed() {
	if v.lag == nil || !v.reached() {
		return
	}
	if v.calls++; v.calls == v.lag.calls {
		v.end()
	}
}

// stepDone counts a step, and ends the stale view after the second step.
func (v *staleView) stepDone(r *result) error {
	if !v.reached() {
		return nil
	}
	if v.steps++; v.steps < 2 {
		return nil
	}
	if v.lag != nil && v.lag.gradual && !v.ended {
		if err := v.catchUp(r); err != nil {
			return err
		}
	}
	v.end()
	return nil
}

// catchUp updates the caches by one revision at a time, until they are current. After each revision, the operator has a
// second for reconciles.
func (v *staleView) catchUp(r *result) error {
	const most = 100 // no scenario needs more revisions
	v.known = v.lag.revision
	for range most {
		if v.known >= v.world.Revision() {
			return nil
		}
		v.world.Locked(func() { v.known++ })
		for _, o := range v.world.Operators {
			o.WakeWatches()
		}
		if err := r.pass(v.world, time.Second, maxReconciles, 0); err != nil {
			return err
		}
	}
	return fmt.Errorf("the operator still writes after %d revisions", most)
}

// end makes the caches current.
func (v *staleView) end() {
	v.world.Locked(func() { v.ended = true })
	for _, o := range v.world.Operators {
		o.WakeWatches()
		o.ExpireWatches()
	}
}
