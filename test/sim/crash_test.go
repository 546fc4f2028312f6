// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/schedule"
	"container.training/useless/test/history"
	"container.training/useless/test/sim"
)

var kinds []*sim.Kind

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	var err error
	if kinds, err = sim.Kinds("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// quiet is longer than any delay before another try.
const quiet = 5 * time.Minute

// A life is what users ask of a controller, step by step, with time in between for it to do all of that.
type life struct {
	name       string
	controller string
	kinds      []string // that the controller caches
	steps      []step
}

type step struct {
	what  string
	do    func(context.Context, client.Client) error
	lasts time.Duration // until the next one; quiet if zero
}

// patch changes an object.
func patch(object client.Object, change string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(change)))
	}
}

// remove deletes an object.
func remove(object client.Object) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Delete(ctx, object.DeepCopyObject().(client.Object))
	}
}

func machine(name string) *v1beta1.Machine {
	return &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func switchOf(name string) *v1beta1.Switch {
	return &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// brief is a life of few writes, for what has to be done with each two of them.
var brief = life{
	name: "machine, briefly", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "turn a switch up", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "relabel", do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"other"}}}`)},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":1}}}`)},
		deleteMachine,
	},
}

// Steps at the ends of a Machine's life.
var (
	createMachine = step{what: "create", do: func(ctx context.Context, c client.Client) error {
		m := machine("m")
		m.Spec.Switches.Count = 2
		return c.Create(ctx, m)
	}}
	deleteMachine = step{what: "delete", do: remove(machine("m"))}
)

var lives = []life{{
	name: "machine", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "turn a switch up", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "scale up", do: patch(machine("m"), `{"spec":{"switches":{"count":3}}}`)},
		{what: "relabel", do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"other"}}}`)},
		{what: "turn all up", do: patch(machine("m"), `{"spec":{"position":"up"}}`)},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":2}}}`)},
		{what: "pause", do: patch(machine("m"), `{"metadata":{"annotations":{"useless.container.training/paused":"true"}}}`)},
		{what: "turn one up meanwhile", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "go on", do: patch(machine("m"), `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)},
		{what: "label it back", do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"m"}}}`)},
		deleteMachine,
	},
}, {
	name: "a switch is taken away", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "relabel", do: patch(switchOf("m-1"), `{"metadata":{"labels":{"machine":"other"}}}`)},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":1}}}`)},
		deleteMachine,
	},
}, {
	name: "schedule", controller: "schedule", kinds: []string{"Deployment"}, steps: []step{
		{"create", func(ctx context.Context, c client.Client) error { return c.Create(ctx, scheduled()) }, time.Hour},
		{"edit the schedule", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/stop-schedule":"20 * * * *"}}}`), time.Hour},
		{"scale by hand", patch(scheduled(), `{"spec":{"replicas":5}}`), time.Hour},
		{"suspend", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/suspend":"true"}}}`), time.Hour},
		{"go on", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/suspend":null}}}`), time.Hour},
		{"a mistake", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/start-schedule":"25:00"}}}`), time.Hour},
		{"mend it", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/start-schedule":"5 * * * *"}}}`), time.Hour},
		{"remove the schedule", patch(scheduled(), `{"metadata":{"annotations":{
			"useless.container.training/start-schedule":null,"useless.container.training/stop-schedule":null}}}`), time.Hour},
		{what: "delete", do: remove(scheduled())},
	},
}}

// scheduled is a Deployment that is there for half of each hour.
func scheduled() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{
		schedule.StartScheduleAnnotation: "10 * * * *", schedule.StopScheduleAnnotation: "40 * * * *", schedule.TimeZoneAnnotation: "UTC",
	}}}
	d.Spec.Replicas, d.Spec.Selector, d.Spec.Template.Labels = new(int32(3)), &metav1.LabelSelector{MatchLabels: labels}, labels
	return d
}

// A fault is what goes wrong with a write.
type fault struct {
	name string
	fate sim.Fate
}

var (
	resource = schema.GroupResource{Group: v1beta1.GroupVersion.Group, Resource: "things"}
	faults   = []fault{
		{"crash before", sim.Fate{Lose: true, Crash: true}},
		{"crash after", sim.Fate{Mute: true, Crash: true}},
		{"reply lost", sim.Fate{Mute: true}},
		{"connection broken", sim.Fate{Lose: true}},
		{"409", sim.Fate{Refuse: apierrors.NewConflict(resource, "thing", errors.New("it has changed"))}},
		{"429", sim.Fate{Refuse: apierrors.NewTooManyRequests("too many", 1)}},
		{"500", sim.Fate{Refuse: apierrors.NewInternalError(errors.New("something is wrong"))}},
		{"timeout", sim.Fate{Refuse: apierrors.NewTimeoutError("too slow", 0)}},
	}
)

// conditions are what a life goes through.
type conditions struct {
	wrong   map[int]fault // what goes wrong with which of the operators' writes
	lag     *lag          // of the first operator
	leaders int           // how many operators are at work; one if zero
}

func (c conditions) String() string {
	var what []string
	for _, i := range slices.Sorted(maps.Keys(c.wrong)) {
		what = append(what, fmt.Sprintf("write %d: %s", i, c.wrong[i].name))
	}
	if c.lag != nil {
		what = append(what, c.lag.String())
	}
	if c.leaders > 1 {
		what = append(what, fmt.Sprintf("%d leaders", c.leaders))
	}
	return strings.Join(what, ", ")
}

// A record is what came of a life.
type record struct {
	states    []string // after each step
	writes    int      // that the operator has tried
	served    int      // of these, those that had their effect
	revisions int64
	faults    []error // that must not be
}

// live runs a life under some conditions.
func (l life) live(t *testing.T, c conditions) (r record) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := sim.NewWorld(kinds...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := w.End(); err != nil {
				t.Error(err)
			}
		}()
		f := &fog{lag: c.lag, world: w}
		w.Choose = func(calls []sim.Call) (int, sim.Fate) { return 0, r.fate(calls[0], c, f) }
		if _, err := w.StartSeeing(f.sees, "operator", l.controller); err != nil {
			t.Fatal(err)
		}
		for range c.leaders - 1 {
			if _, err := w.Start("another", l.controller); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.run(t.Context(), w, f, &r); err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		r.revisions = w.Revision()
		r.faults = history.Check(revisions(t, w))
	})
	return r
}

// fate is what becomes of a call.
func (r *record) fate(call sim.Call, c conditions, f *fog) (fate sim.Fate) {
	f.call()
	if !call.Writes() {
		return fate
	}
	fate = c.wrong[r.writes].fate
	if r.writes++; f.restart() {
		fate = sim.Fate{Lose: true, Crash: true}
	}
	if !fate.Lose && fate.Refuse == nil {
		r.served++
	}
	return fate
}

// run takes all steps, and records what there is after each and in the end.
func (l life) run(ctx context.Context, w *sim.World, f *fog, r *record) error {
	for i, step := range l.steps {
		if i == len(l.steps)-1 { // what nobody knew of when all was deleted may stay
			f.lift()
			if err := w.Pass(quiet); err != nil {
				return err
			}
		}
		err := step.do(ctx, w.Admin)
		if apierrors.IsNotFound(err) && f.lag != nil { // not yet there
			f.lift()
			err = errors.Join(w.Pass(quiet), step.do(ctx, w.Admin))
		}
		if err := errors.Join(err, w.Pass(max(step.lasts, quiet))); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		r.states = append(r.states, step.what+":\n"+state(w))
		f.end()
	}
	f.lift()
	err := w.Pass(quiet)
	r.states = append(r.states, state(w))
	return err
}

// state is all that there is, but for what depends on when it happened and on how often.
func state(w *sim.World) string {
	var all strings.Builder
	for _, object := range w.Objects() {
		if object.GetKind() == "Event" {
			continue
		}
		object = object.DeepCopy()
		for _, path := range [][]string{
			{"metadata", "uid"}, {"metadata", "resourceVersion"}, {"metadata", "creationTimestamp"}, {"metadata", "generation"},
			{"metadata", "annotations", v1beta1.FlippedAtAnnotation}, {"status", "lastFlipTime"}, {"status", "observedGeneration"},
		} {
			unstructured.RemoveNestedField(object.Object, path...)
		}
		strip(object.Object, "lastTransitionTime", "observedGeneration", "uid")
		data, _ := json.Marshal(object.Object)
		all.Write(append(data, '\n'))
	}
	return all.String()
}

// strip removes fields wherever they are.
func strip(value any, names ...string) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range names {
			delete(value, name)
		}
		for _, member := range value {
			strip(member, names...)
		}
	case []any:
		for _, element := range value {
			strip(element, names...)
		}
	}
}

// revisions are the world's history.
func revisions(t *testing.T, w *sim.World) (all []history.Revision) {
	t.Helper()
	for _, change := range w.History() {
		var object client.Object
		switch change.Kind.Kind {
		case "Machine":
			object = &v1beta1.Machine{}
		case "Switch":
			object = &v1beta1.Switch{}
		default:
			continue
		}
		if err := kruntime.DefaultUnstructuredConverter.FromUnstructured(change.Object.Object, object); err != nil {
			t.Fatal(err)
		}
		all = append(all, history.Revision{Type: change.Type, Object: object})
	}
	return all
}

// most is how many more writes a fault may cost.
const most = 2

// TestCrashes has each write go wrong in each way.
func TestCrashes(t *testing.T) {
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			want := l.live(t, conditions{})
			judge(t, conditions{}, want)
			var cases []conditions
			for i := range want.writes {
				for _, f := range faults {
					cases = append(cases, conditions{wrong: map[int]fault{i: f}})
				}
			}
			inParallel(t, cases, l.survive(want))
		})
	}
}

// TestCrashesInPairs has each two writes go wrong, in each two of the ways that are unlike each other: after one of them
// nobody knows of the write, after one only the API server, and after one only the operator that is no more.
func TestCrashesInPairs(t *testing.T) {
	want := brief.live(t, conditions{})
	judge(t, conditions{}, want)
	var cases []conditions
	for i := range want.writes {
		for j := range i {
			for _, first := range faults[:3] {
				for _, second := range faults[:3] {
					cases = append(cases, conditions{wrong: map[int]fault{j: first, i: second}})
				}
			}
		}
	}
	inParallel(t, cases, brief.survive(want))
}

// survive lives a life with faults: what comes of it is what comes of it without, and it takes hardly more writes.
func (l life) survive(want record) func(*testing.T, conditions) {
	return func(t *testing.T, c conditions) {
		t.Helper()
		got := l.live(t, c)
		judge(t, c, got)
		if diff := cmp.Diff(want.states, got.states); diff != "" {
			t.Errorf("%v: (-without +with)\n%s", c, diff)
		}
		if more := got.served - want.served; more > most*len(c.wrong) {
			t.Errorf("%v: %d more writes", c, more)
		}
	}
}

// endAlike lives a life in which the operator does not know all, in the end of which there is what there is otherwise.
func (l life) endAlike(want record) func(*testing.T, conditions) {
	return func(t *testing.T, c conditions) {
		t.Helper()
		got := l.live(t, c)
		judge(t, c, got)
		if want, got := want.states[len(want.states)-1], got.states[len(got.states)-1]; want != got {
			t.Errorf("%v: in the end there is\n%s\nand not\n%s", c, got, want)
		}
	}
}

// judge reports what must not be.
func judge(t *testing.T, c conditions, r record) {
	t.Helper()
	for _, err := range r.faults {
		t.Errorf("%v: %v", c, err)
	}
}

// inParallel runs all cases, or where that takes long a part of them, until one fails.
func inParallel(t *testing.T, cases []conditions, run func(*testing.T, conditions)) {
	t.Helper()
	start, workers := time.Now(), runtime.GOMAXPROCS(0)
	if raceEnabled {
		const each = 11 // has no factor in common with the numbers of ways
		some := cases[:0:0]
		for i := 0; i < len(cases); i += each {
			some = append(some, cases[i])
		}
		cases = some
	}
	t.Run("runs", func(t *testing.T) {
		for worker := range workers {
			t.Run(strconv.Itoa(worker), func(t *testing.T) {
				t.Parallel()
				for i := worker; i < len(cases) && !t.Failed(); i += workers {
					run(t, cases[i])
				}
			})
		}
	})
	t.Logf("%d runs in %s", len(cases), time.Since(start).Round(time.Millisecond))
}
