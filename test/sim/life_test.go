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
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/queue"
	"container.training/useless/test/history"
	"container.training/useless/test/sim"
)

var kinds []*sim.Kind

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	debug.SetGCPercent(400) // worlds come and go, and all of them are small
	var err error
	if kinds, err = sim.Kinds("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// quiet is longer than any delay before another try.
const quiet = 90 * time.Second

// A life is what users ask of a controller, step by step, with time in between for it to do all of that.
type life struct {
	name       string
	controller string
	kinds      []string // that the controller caches
	steps      []step
	refused    bool          // some of the writes, as they would be by a real API server
	looks      time.Duration // how often it looks at the clock at least, whatever happens; never if zero
}

type step struct {
	what  string
	do    func(context.Context, client.Client) error
	lasts time.Duration // until the next one; quiet if zero
}

// caches are those that can stop, by their kinds. The last one stands for all of several.
func (l life) caches() []string {
	if len(l.kinds) == 1 {
		return l.kinds
	}
	return append(slices.Clip(l.kinds), "")
}

// behind is by how many revisions the API server of an operator that starts may lag. Of Machines, the most may go wrong.
func (l life) behind() []int64 {
	if slices.Contains(l.kinds, "Machine") {
		return []int64{0, 2, 10}
	}
	return []int64{2, 10}
}

// patch changes an object.
func patch(object client.Object, change string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(change)))
	}
}

// patchStatus changes an object's status.
func patchStatus(object client.Object, change string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Status().Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(change)))
	}
}

// remove deletes an object.
func remove(object client.Object, options ...client.DeleteOption) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Delete(ctx, object.DeepCopyObject().(client.Object), options...)
	}
}

// create makes an object.
func create(object client.Object) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Create(ctx, object.DeepCopyObject().(client.Object))
	}
}

// machineOf is a Machine with so many switches.
func machineOf(name string, switches int) *v1beta1.Machine {
	m := machine(name)
	m.Spec.Switches.Count = int32(switches)
	return m
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
	createMachine = step{what: "create", do: create(machineOf("m", 2))}
	deleteMachine = step{what: "delete", do: remove(machine("m"))}
)

// holdName is a step after which a name is taken that a Machine would give a switch.
const holdName = "hold a switch"

// lives are those of all controllers, and briefLives one of few writes of each.
var (
	lives      = slices.Concat(machineLives, scheduleLives, podCountLives, ingressLives, serverLives)
	briefLives = []life{brief, briefSchedule, briefServer, podCountLives[0], ingressLives[0]}
)

var machineLives = []life{{
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
	name: "its switches are kept", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "delete, and keep the switches", do: remove(machine("m"), client.PropagationPolicy(metav1.DeletePropagationOrphan))},
		{what: "delete a switch", do: remove(switchOf("m-1"))},
	},
}, {
	name: "another one of that name", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: holdName, do: patch(switchOf("m-0"), `{"metadata":{"finalizers":["example.com/hold"]}}`)},
		{what: "delete", do: remove(machine("m"))},
		{what: "create again", do: create(machineOf("m", 2))},
		{what: "let the switch go", do: patch(switchOf("m-0"), `{"metadata":{"finalizers":null}}`)},
		deleteMachine,
	},
}}

var scheduleLives = []life{{
	name: "schedule", controller: "schedule", kinds: []string{"Deployment"}, looks: longestWait, steps: []step{
		{"create", create(scheduled()), time.Hour},
		{"edit the schedule", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/stop-schedule":"20 * * * *"}}}`), time.Hour},
		{"scale by hand", patch(scheduled(), `{"spec":{"replicas":5}}`), time.Hour},
		{"suspend", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/suspend":"true"}}}`), time.Hour},
		{"go on", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/suspend":null}}}`), time.Hour},
		{"a mistake", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/start-schedule":"25:00"}}}`), time.Hour},
		{"mend it", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/start-schedule":"5 * * * *"}}}`), time.Hour},
		{"remove the schedule", removeSchedule, time.Hour},
		{what: "delete", do: remove(scheduled())},
	},
}, {
	name: "schedule, with an autoscaler", controller: "schedule", kinds: []string{"Deployment", "HorizontalPodAutoscaler"}, looks: longestWait, steps: []step{
		{"create", create(scheduled()), time.Hour},
		{"an autoscaler would undo a stop", create(autoscaler()), time.Hour},
		{"it no longer would", patch(autoscaler(), `{"spec":{"minReplicas":1}}`), time.Hour},
		{"it would again", patch(autoscaler(), `{"spec":{"minReplicas":0}}`), time.Hour},
		{"delete the autoscaler", remove(autoscaler()), time.Hour},
		{what: "remove the schedule", do: removeSchedule},
		{what: "delete", do: remove(scheduled())},
	},
}}

// briefSchedule is a schedule's life of few writes.
var briefSchedule = life{
	name: "schedule, briefly", controller: "schedule", kinds: []string{"Deployment"}, looks: longestWait, steps: []step{
		{"create", create(scheduled()), time.Hour},
		{"scale by hand", patch(scheduled(), `{"spec":{"replicas":5}}`), time.Hour},
		{what: "remove the schedule", do: removeSchedule},
		{what: "delete", do: remove(scheduled())},
	},
}

// year is one of a schedule that is looked at every fortnight.
var year = life{
	name: "a year", controller: "schedule", kinds: []string{"Deployment"}, looks: longestWait, steps: slices.Concat(
		[]step{{what: "create", do: create(monthly())}},
		slices.Repeat([]step{{"a fortnight passes", func(context.Context, client.Client) error { return nil }, 14 * 24 * time.Hour}}, 26),
		[]step{{what: "delete", do: remove(monthly())}},
	),
}

var removeSchedule = patch(scheduled(), `{"metadata":{"annotations":{
	"useless.container.training/start-schedule":null,"useless.container.training/stop-schedule":null}}}`)

// scheduled is a Deployment that is there for half of each hour.
func scheduled() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{
		v1beta1.StartScheduleAnnotation: "10 * * * *", v1beta1.StopScheduleAnnotation: "40 * * * *", v1beta1.TimeZoneAnnotation: "UTC",
	}}}
	d.Spec.Replicas, d.Spec.Selector, d.Spec.Template.Labels = new(int32(3)), &metav1.LabelSelector{MatchLabels: labels}, labels
	return d
}

// autoscaler is one of the scheduled Deployment that may make no replicas.
func autoscaler() *autoscalingv2.HorizontalPodAutoscaler {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	hpa.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas = new(int32), 5
	return hpa
}

// monthly is a Deployment that is there for three days of each month of 2000, in which time began for a bubble of synctest. In
// Paris there was no 02:30 on 26 March, and there were two on 29 October.
func monthly() *appsv1.Deployment {
	d := scheduled()
	d.Annotations = map[string]string{
		v1beta1.StartScheduleAnnotation: "30 2 26 * *", v1beta1.StopScheduleAnnotation: "30 2 29 * *", v1beta1.TimeZoneAnnotation: "Europe/Paris",
	}
	return d
}

// conditions are what a life goes through.
type conditions struct {
	wrong   map[int]fault // what goes wrong with which of the operators' writes
	lag     *lag          // of the first operator
	missed  []miss        // of the first operator, until it reads all anew; the last one comes last
	leaders int           // how many operators are at work; one if zero
}

// rest is how long to wait in the end whether anything more is written: an hour, unless there are very many such runs.
func (c conditions) rest() time.Duration {
	if len(c.wrong) > 1 || len(c.missed) > 1 {
		return quiet
	}
	return time.Hour
}

func (c conditions) String() string {
	var what []string
	for _, i := range slices.Sorted(maps.Keys(c.wrong)) {
		what = append(what, fmt.Sprintf("write %d: %s", i, c.wrong[i].name))
	}
	if c.lag != nil {
		what = append(what, c.lag.String())
	}
	for _, m := range c.missed {
		what = append(what, m.String())
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
	effects   int      // of what the operator has written
	revisions []int64  // of what the controller caches
	faults    []error  // that must not be
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
		w.NoStreams = c.lag != nil && c.lag.restart
		f := &fog{lag: c.lag, missed: c.missed, world: w}
		w.Choose = func(calls []sim.Call) (int, sim.Fate) { return 0, r.fate(calls[0], c, f) }
		if err := l.start(t.Context(), c, f); err != nil {
			t.Fatal(err)
		}
		if err := l.run(t.Context(), w, c, f, &r); err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		for _, change := range w.History() {
			if slices.Contains(l.kinds, change.Kind.Kind) {
				r.revisions = append(r.revisions, change.Revision)
			}
			if byOperator(change) && change.Kind.Kind != "Event" {
				r.effects++
			}
		}
		if w.Reconciles.Load() == 0 {
			t.Error("nothing is reconciled, or nobody counts")
		}
		r.faults = append(r.faults, slices.Concat(history.Check(revisions(t, w)), misdeeds(w.History()))...)
	})
	return r
}

// start starts the operators, of which the first one is in the fog.
func (l life) start(ctx context.Context, c conditions, f *fog) error {
	first, err := f.world.StartSeeing(f.sees, operators[0], l.controller)
	if err != nil {
		return err
	}
	first.Miss(f.misses)
	if c.lag != nil && c.lag.steady {
		go f.catchUp(ctx, first)
	}
	for range c.leaders - 1 {
		_, another := f.world.Start(operators[1], l.controller)
		err = errors.Join(err, another)
	}
	return err
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
	return fate
}

// run takes all steps, and records what there is after each and in the end.
func (l life) run(ctx context.Context, w *sim.World, c conditions, f *fog, r *record) error {
	for i, step := range l.steps {
		if i == len(l.steps)-1 { // what nobody knew of when all was deleted may stay
			f.lift()
			if err := r.rest(w, c.rest(), l.looks); err != nil {
				return err
			}
		}
		err := step.do(ctx, w.Admin)
		foggy := c.lag != nil || len(c.missed) > 0
		if foggy && (apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)) { // not yet there, or still
			f.lift()
			// A switch may have another name by now.
			err = errors.Join(w.Pass(quiet), client.IgnoreNotFound(step.do(ctx, w.Admin)))
		}
		lasts, most := max(step.lasts, quiet), mostReconciles
		if foggy { // who is refused for what it does not know tries again
			most += int(lasts / queue.LastRetry)
		}
		if err := errors.Join(err, r.pass(w, lasts, most, l.looks)); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		r.states = append(r.states, step.what+":\n"+state(w))
		f.end()
	}
	f.lift()
	err := r.pass(w, quiet, mostReconciles, l.looks)
	r.states = append(r.states, state(w))
	return err
}

// longestWait is how long the controller of schedules waits at most until it looks at the clock again.
const longestWait = 10 * time.Minute

// mostReconciles is how many there are at most of an object until it is as it should be, and nothing more is to be done about it.
const mostReconciles = 60

// pass lets time pass, in which there are not too many reconciles beside those for which the clock is looked at.
func (r *record) pass(w *sim.World, d time.Duration, most int, looks time.Duration) error {
	if looks > 0 {
		most += int(d/looks) + 1
	}
	before := w.Reconciles.Load()
	err := w.Pass(d)
	if n := int(w.Reconciles.Load() - before); n > most {
		r.faults = append(r.faults, fmt.Errorf("revision %d: there are %d reconciles in %s", w.Revision(), n, d))
	}
	return err
}

// rest lets some time pass after what is still to be done. Nothing is written in it, and nothing looked at again.
func (r *record) rest(w *sim.World, length, looks time.Duration) error {
	if err := r.pass(w, quiet, mostReconciles, looks); err != nil {
		return err
	}
	before := w.Revision()
	err := r.pass(w, length, 0, looks)
	for _, change := range w.History()[before:] {
		r.faults = append(r.faults, fmt.Errorf("revision %d: %s writes %s %s, though nothing has happened for %s",
			change.Revision, change.By, change.Kind.Kind, change.Object.GetName(), quiet))
	}
	return err
}

// TestDay leaves a Machine alone for longer than a cache with resyncs would.
func TestDay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		_, err := w.Start(operators[0], "machine")
		must(t, errors.Join(err, w.Admin.Create(t.Context(), machineOf("m", 2))))
		r := &record{}
		must(t, r.rest(w, 24*time.Hour, 0))
		if err := errors.Join(r.faults...); err != nil {
			t.Error(err)
		}
	})
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
			{"status", "server", "id"}, {"status", "server", "startTime"}, {"status", "retryTime"}, {"status", "lastUpdateTime"},
		} {
			unstructured.RemoveNestedField(object.Object, path...)
		}
		strip(object.Object, "deletionTimestamp", "lastTransitionTime", "observedGeneration", "startedAt", "time", "uid")
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

// operators are the names of those who are the operator.
var operators = []string{"operator", "another"}

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
		all = append(all, history.Revision{Type: change.Type, Object: object, By: process(w, change), At: change.Time})
	}
	return all
}

// process names the process of the operator that has made a change, or nothing.
func process(w *sim.World, change sim.Change) string {
	if !byOperator(change) {
		return ""
	}
	ended, _ := slices.BinarySearch(w.Ends[change.By], change.Revision)
	return fmt.Sprint(change.By, ended)
}

// inWorld runs a test in the bubble of a world.
func inWorld(t *testing.T, test func(*testing.T, *sim.World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := sim.NewWorld(kinds...)
		must(t, err)
		defer func() { must(t, w.End()) }()
		test(t, w)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// left reports what is there of a kind, or is controlled by something.
func left(w *sim.World, kind string) error {
	for _, object := range w.Objects() {
		if object.GetKind() == kind || metav1.GetControllerOf(object) != nil {
			return fmt.Errorf("%s %s is left", object.GetKind(), object.GetName())
		}
	}
	return nil
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

// short reports whether a test runs a fixed part of its cases: with -short, and with the race detector.
var short = testing.Short

// stride is how far apart the cases of a short test are. It has no common factor with the number of faults or kinds, so that
// all of them occur.
const stride = 11

// inParallel runs the cases until one fails: all of them, or every eleventh in a short test. It returns how many it has run.
func inParallel(t *testing.T, cases []conditions, run func(*testing.T, conditions)) (runs int) {
	t.Helper()
	start, workers, each := time.Now(), runtime.GOMAXPROCS(0), 1
	if short() {
		each = stride
	}
	t.Run("runs", func(t *testing.T) {
		for worker := range workers {
			t.Run(strconv.Itoa(worker), func(t *testing.T) {
				t.Parallel()
				for i := worker * each; i < len(cases) && !t.Failed(); i += workers * each {
					run(t, cases[i])
				}
			})
		}
	})
	runs = (len(cases) + each - 1) / each
	t.Logf("%d runs in %s", runs, time.Since(start).Round(time.Millisecond))
	return runs
}
