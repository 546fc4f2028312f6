// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"cmp"
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
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/queue"
	"container.training/useless/test/internal/invariants"
	"container.training/useless/test/sim"
)

var kinds []*sim.Kind

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	// The other error handler limits the rate of errors. It compares the clocks of different simulations with each other
	// and with the real clock, so it could sleep for years.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	debug.SetGCPercent(400) // simulations allocate and drop many small worlds
	var err error
	if kinds, err = sim.Kinds("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// settleTime is longer than queue.LastRetry, the maximum delay of a retry in a work queue.
const settleTime = 90 * time.Second

// A scenario is a sequence of changes by users. In the pauses between the changes, the controller reacts.
type scenario struct {
	name       string
	controller string
	kinds      []string // the kinds that the controller caches
	steps      []step
	refused    bool          // the API server rejects some of the operator's writes
	maxWait    time.Duration // the longest time between two reconciles; 0 if there is no limit
}

type step struct {
	what  string
	do    func(context.Context, client.Client) error
	pause time.Duration // the time until the next step; 0 means settleTime
}

// caches returns the kinds whose cache can stop. If there are several kinds, the last element is "", which stands for
// all kinds.
func (s scenario) caches() []string {
	if len(s.kinds) == 1 {
		return s.kinds
	}
	return append(slices.Clip(s.kinds), "")
}

// behind returns the numbers of revisions by which the API server of a restarted operator lags in the tests. Machines
// depend most on the cache, so they have the most cases.
func (s scenario) behind() []int64 {
	if slices.Contains(s.kinds, "Machine") {
		return []int64{0, 2, 10}
	}
	return []int64{2, 10}
}

// patch returns a function that applies a merge patch.
func patch(object client.Object, change string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, object.DeepCopyObject().(client.Object),
			client.RawPatch(types.MergePatchType, []byte(change)))
	}
}

// patchStatus returns a function that applies a merge patch to the status.
func patchStatus(object client.Object, change string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Status().Patch(ctx, object.DeepCopyObject().(client.Object),
			client.RawPatch(types.MergePatchType, []byte(change)))
	}
}

// remove returns a function that deletes an object.
func remove(object client.Object, options ...client.DeleteOption) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Delete(ctx, object.DeepCopyObject().(client.Object), options...)
	}
}

// create returns a function that creates an object.
func create(object client.Object) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Create(ctx, object.DeepCopyObject().(client.Object))
	}
}

// machineOf returns a Machine with this number of switches.
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

// shortMachine is a scenario with few writes. Tests of all pairs of writes use it.
var shortMachine = scenario{
	name: "machine, short", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "turn a switch up", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "relabel", do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"other"}}}`)},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":1}}}`)},
		deleteMachine,
	},
}

// The first and last step of most Machine scenarios.
var (
	createMachine = step{what: "create", do: create(machineOf("m", 2))}
	deleteMachine = step{what: "delete", do: remove(machine("m"))}
)

// holdName is the name of a step that adds a finalizer to a switch. When the switch is deleted, its name stays taken.
const holdName = "add a finalizer to a switch"

// scenarios are the scenarios of all controllers. shortScenarios has a scenario with few writes for each controller.
var (
	scenarios = slices.Concat(machineScenarios, scheduleScenarios, podCountScenarios, ingressScenarios,
		virtualMachineScenarios)
	shortScenarios = []scenario{shortMachine, shortSchedule, shortVirtualMachine, podCountScenarios[0],
		ingressScenarios[0]}
)

var machineScenarios = []scenario{{
	name: "machine", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "turn a switch up", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "scale up", do: patch(machine("m"), `{"spec":{"switches":{"count":3}}}`)},
		{what: "relabel", do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"other"}}}`)},
		{what: "turn all up", do: patch(machine("m"), `{"spec":{"position":"up"}}`)},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":2}}}`)},
		{what: "pause",
			do: patch(machine("m"), `{"metadata":{"annotations":{"useless.container.training/paused":"true"}}}`)},
		{what: "turn a switch up while paused", do: patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)},
		{what: "resume",
			do: patch(machine("m"), `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)},
		{what: "restore the label", do: patch(switchOf("m-0"), `{"metadata":{"labels":{"machine":"m"}}}`)},
		deleteMachine,
	},
}, {
	name: "a switch is relabeled", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: "relabel", do: patch(switchOf("m-1"), `{"metadata":{"labels":{"machine":"other"}}}`)},
		{what: "scale down", do: patch(machine("m"), `{"spec":{"switches":{"count":1}}}`)},
		deleteMachine,
	},
}, {
	name: "the deletion orphans the switches", controller: "machine", kinds: []string{"Machine", "Switch"},
	steps: []step{
		createMachine,
		{what: "delete and orphan the switches",
			do: remove(machine("m"), client.PropagationPolicy(metav1.DeletePropagationOrphan))},
		{what: "delete a switch", do: remove(switchOf("m-1"))},
	},
}, {
	name: "a Machine is recreated", controller: "machine", kinds: []string{"Machine", "Switch"}, steps: []step{
		createMachine,
		{what: holdName, do: patch(switchOf("m-0"), `{"metadata":{"finalizers":["example.com/hold"]}}`)},
		{what: "delete", do: remove(machine("m"))},
		{what: "create again", do: create(machineOf("m", 2))},
		{what: "remove the finalizer", do: patch(switchOf("m-0"), `{"metadata":{"finalizers":null}}`)},
		deleteMachine,
	},
}}

var scheduleScenarios = []scenario{{
	name: "schedule", controller: "schedule", kinds: []string{"Deployment"}, maxWait: maxScheduleWait, steps: []step{
		{"create", create(scheduled()), time.Hour},
		{"edit the schedule",
			patch(scheduled(),
				`{"metadata":{"annotations":{"useless.container.training/stop-schedule":"20 * * * *"}}}`), time.Hour},
		{"scale by hand", patch(scheduled(), `{"spec":{"replicas":5}}`), time.Hour},
		{"suspend", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/suspend":"true"}}}`),
			time.Hour},
		{"resume", patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/suspend":null}}}`),
			time.Hour},
		{"set an invalid schedule",
			patch(scheduled(), `{"metadata":{"annotations":{"useless.container.training/start-schedule":"25:00"}}}`),
			time.Hour},
		{"fix the schedule",
			patch(scheduled(),
				`{"metadata":{"annotations":{"useless.container.training/start-schedule":"5 * * * *"}}}`), time.Hour},
		{"remove the schedule", removeSchedule, time.Hour},
		{what: "delete", do: remove(scheduled())},
	},
}, {
	name: "schedule, with an autoscaler", controller: "schedule",
	kinds: []string{"Deployment", "HorizontalPodAutoscaler"}, maxWait: maxScheduleWait, steps: []step{
		{"create", create(scheduled()), time.Hour},
		{"create an autoscaler that undoes stops", create(autoscaler()), time.Hour},
		{"change the autoscaler so that it does not undo stops", patch(autoscaler(), `{"spec":{"minReplicas":1}}`), time.Hour},
		{"change the autoscaler so that it undoes stops", patch(autoscaler(), `{"spec":{"minReplicas":0}}`), time.Hour},
		{"delete the autoscaler", remove(autoscaler()), time.Hour},
		{what: "remove the schedule", do: removeSchedule},
		{what: "delete", do: remove(scheduled())},
	},
}, {
	name: "schedule of a StatefulSet", controller: "schedule", kinds: []string{"StatefulSet"},
	maxWait: maxScheduleWait, steps: []step{
		{"create", create(scheduledStatefulSet()), time.Hour},
		{"scale by hand", patch(scheduledStatefulSet(), `{"spec":{"replicas":5}}`), time.Hour},
		{"remove the schedule", unschedule(scheduledStatefulSet()), time.Hour},
		{what: "delete", do: remove(scheduledStatefulSet())},
	},
}, {
	name: "schedule of a CronJob", controller: "schedule", kinds: []string{"CronJob"},
	maxWait: maxScheduleWait, steps: []step{
		{"create", create(scheduledCronJob()), time.Hour},
		{"suspend by hand", patch(scheduledCronJob(), `{"spec":{"suspend":true}}`), time.Hour},
		{"resume by hand", patch(scheduledCronJob(), `{"spec":{"suspend":false}}`), time.Hour},
		{"remove the schedule", unschedule(scheduledCronJob()), time.Hour},
		{what: "delete", do: remove(scheduledCronJob())},
	},
}, {
	name: "schedule of an autoscaler", controller: "schedule", kinds: []string{"HorizontalPodAutoscaler"},
	maxWait: maxScheduleWait, steps: []step{
		{"create", create(scheduledAutoscaler()), time.Hour},
		{"change the limits by hand", patch(scheduledAutoscaler(), `{"spec":{"minReplicas":2,"maxReplicas":9}}`), time.Hour},
		{"remove the schedule", unschedule(scheduledAutoscaler()), time.Hour},
		{what: "delete", do: remove(scheduledAutoscaler())},
	},
}}

// shortSchedule is a scenario with few writes. Tests of all pairs of writes use it.
var shortSchedule = scenario{
	name: "schedule, short", controller: "schedule", kinds: []string{"Deployment"}, maxWait: maxScheduleWait,
	steps: []step{
		{"create", create(scheduled()), time.Hour},
		{"scale by hand", patch(scheduled(), `{"spec":{"replicas":5}}`), time.Hour},
		{what: "remove the schedule", do: removeSchedule},
		{what: "delete", do: remove(scheduled())},
	},
}

// yearScenario has a schedule and a step every two weeks for a year.
var yearScenario = scenario{
	name: "a year", controller: "schedule", kinds: []string{"Deployment"}, maxWait: maxScheduleWait,
	steps: slices.Concat(
		[]step{{what: "create", do: create(monthly())}},
		slices.Repeat([]step{{"wait two weeks", func(context.Context, client.Client) error { return nil },
			14 * 24 * time.Hour}}, 26),
		[]step{{what: "delete", do: remove(monthly())}},
	),
}

var removeSchedule = unschedule(scheduled())

// unschedule returns a function that removes the schedule of a workload.
func unschedule(o client.Object) func(context.Context, client.Client) error {
	return patch(o, `{"metadata":{"annotations":{
		"useless.container.training/start-schedule":null,"useless.container.training/stop-schedule":null}}}`)
}

// scheduled returns a Deployment that runs for half of each hour.
func scheduled() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web",
		Annotations: map[string]string{
			v1beta1.StartScheduleAnnotation: "10 * * * *", v1beta1.StopScheduleAnnotation: "40 * * * *",
			v1beta1.TimeZoneAnnotation: "UTC",
		}}}
	d.Spec.Replicas, d.Spec.Selector, d.Spec.Template.Labels = new(int32(3)),
		&metav1.LabelSelector{MatchLabels: labels}, labels
	return d
}

// scheduledStatefulSet returns a StatefulSet with the schedule of scheduled.
func scheduledStatefulSet() *appsv1.StatefulSet {
	d := scheduled()
	s := &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta}
	s.Spec.Replicas, s.Spec.Selector, s.Spec.Template = d.Spec.Replicas, d.Spec.Selector, d.Spec.Template
	return s
}

// scheduledCronJob returns a CronJob with the schedule of scheduled.
func scheduledCronJob() *batchv1.CronJob {
	c := &batchv1.CronJob{ObjectMeta: scheduled().ObjectMeta}
	c.Spec.Schedule = "@hourly"
	return c
}

// scheduledAutoscaler returns an autoscaler with the schedule of scheduled.
func scheduledAutoscaler() *autoscalingv2.HorizontalPodAutoscaler {
	hpa := autoscaler()
	hpa.Annotations = scheduled().Annotations
	hpa.Annotations[v1beta1.StopReplicasAnnotation] = "1"
	return hpa
}

// autoscaler returns an autoscaler of the scheduled Deployment that allows 0 replicas.
func autoscaler() *autoscalingv2.HorizontalPodAutoscaler {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	hpa.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
		Name: "web"}
	hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas = new(int32), 5
	return hpa
}

// monthly returns a Deployment that runs for three days of each month. A synctest bubble begins in the year 2000. In
// Paris, the time 02:30 did not exist on 26 March 2000, and occurred twice on 29 October.
func monthly() *appsv1.Deployment {
	d := scheduled()
	d.Annotations = map[string]string{
		v1beta1.StartScheduleAnnotation: "30 2 26 * *", v1beta1.StopScheduleAnnotation: "30 2 29 * *",
		v1beta1.TimeZoneAnnotation: "Europe/Paris",
	}
	return d
}

// conditions are the disturbances of a run.
type conditions struct {
	faults  map[int]fault // the key is the index of a write, from 0, counted over all operators
	lag     *lag          // of the first operator's caches
	missed  []miss        // events that the first operator misses or receives late, in the order of their revisions
	leaders int           // the number of running operators; 0 means 1
}

// restTime returns how long a run waits for unexpected writes before its last step. It returns an hour, or a shorter
// time for conditions that have many combinations.
func (c conditions) restTime() time.Duration {
	if len(c.faults) > 1 || len(c.missed) > 1 {
		return settleTime
	}
	return time.Hour
}

func (c conditions) String() string {
	var what []string
	for _, i := range slices.Sorted(maps.Keys(c.faults)) {
		what = append(what, fmt.Sprintf("write %d: %s", i, c.faults[i].name))
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

// missesCreation reports whether the run misses two events, and one of the two is the creation of a child by the
// operator. The operator waits until a watch delivers its own creations. So it relies on a watch that delivers all
// events in order, or ends. If the watch misses a creation, the operator may create an extra child. It deletes the
// extra child after the next list.
func (c conditions) missesCreation(r result) bool {
	return len(c.missed) > 1 && slices.ContainsFunc(c.missed, func(m miss) bool {
		return m.late == 0 && slices.Contains(r.creations, m.revision)
	})
}

// A result is the outcome of a run.
type result struct {
	states     []string // after each step
	writes     int      // write requests of the operator
	effects    int      // changes of objects by the operator
	revisions  []int64  // of the kinds that the controller caches
	creations  []int64  // revisions at which the operator created a child
	violations []error  // of the invariants
}

// run runs a scenario under these conditions.
func (s scenario) run(t *testing.T, c conditions) (r result) {
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
		v := &staleView{lag: c.lag, missed: c.missed, world: w}
		w.Choose = func(calls []sim.Call) (int, sim.Outcome) { return 0, r.outcome(calls[0], c, v) }
		if err := s.start(t.Context(), c, v); err != nil {
			t.Fatal(err)
		}
		if err := s.runSteps(t.Context(), w, c, v, &r); err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		for _, change := range w.History() {
			if slices.Contains(s.kinds, change.Kind.Kind) {
				r.revisions = append(r.revisions, change.Revision)
			}
			if byOperator(change) && change.Kind.Kind != "Event" {
				r.effects++
				if change.Type == watch.Added {
					r.creations = append(r.creations, change.Revision)
				}
			}
		}
		if w.Reconciles.Load() == 0 {
			t.Error("no reconcile was counted")
		}
		r.violations = append(r.violations, slices.Concat(invariants.Check(revisions(t, w)), violations(w.History()))...)
	})
	return r
}

// start starts the operators. The first one has the stale view.
func (s scenario) start(ctx context.Context, c conditions, v *staleView) error {
	first, err := v.world.StartWithView(v.viewOf, operators[0], s.controller)
	if err != nil {
		return err
	}
	first.SkipEvents(v.misses)
	if c.lag != nil && c.lag.steady {
		go v.catchUpPeriodically(ctx, first)
	}
	for range c.leaders - 1 {
		_, startErr := v.world.Start(operators[1], s.controller)
		err = errors.Join(err, startErr)
	}
	return err
}

// outcome returns the outcome of a call.
func (r *result) outcome(call sim.Call, c conditions, v *staleView) (outcome sim.Outcome) {
	v.callServed()
	if !call.Writes() {
		return outcome
	}
	outcome = c.faults[r.writes].outcome
	if r.writes++; v.shouldRestart() {
		outcome = sim.Outcome{DropRequest: true, Crash: true}
	}
	return outcome
}

// runSteps executes all steps. It records the state after each step and at the end.
func (s scenario) runSteps(ctx context.Context, w *sim.World, c conditions, v *staleView, r *result) error {
	for i, step := range s.steps {
		// The operator must know of all objects before they are deleted. Otherwise, some may remain.
		if i == len(s.steps)-1 {
			v.end()
			if err := r.expectNoWrites(w, c.restTime(), s.maxWait); err != nil {
				return err
			}
		}
		err := step.do(ctx, w.Admin)
		stale := c.lag != nil || len(c.missed) > 0
		// Because of the stale cache, the operator may not have created or deleted an object yet.
		if stale && (apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)) {
			v.end()
			// The switch may have a different name now.
			err = errors.Join(w.Pass(settleTime), client.IgnoreNotFound(step.do(ctx, w.Admin)))
		}
		pause, most := max(step.pause, settleTime), maxReconciles*max(c.leaders, 1)
		if stale { // rejected stale writes are retried
			most += int(pause / queue.LastRetry)
		}
		if err := errors.Join(err, r.pass(w, pause, most, s.maxWait)); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		r.states = append(r.states, step.what+":\n"+state(w))
		if err := v.stepDone(r); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	v.end()
	err := r.pass(w, settleTime, maxReconciles*max(c.leaders, 1), s.maxWait)
	r.states = append(r.states, state(w))
	return err
}

// maxScheduleWait is the longest time between two reconciles of the schedule controller.
const maxScheduleWait = 10 * time.Minute

// maxReconciles is the maximum number of reconciles by one operator until an object is up to date and no reconcile is
// pending.
const maxReconciles = 60

// pass advances the clock by d. It adds a violation if the number of reconciles exceeds limit. If maxWait is not zero,
// one more reconcile is allowed per maxWait.
func (r *result) pass(w *sim.World, d time.Duration, limit int, maxWait time.Duration) error {
	if maxWait > 0 {
		limit += int(d/maxWait) + 1
	}
	before := w.Reconciles.Load()
	err := w.Pass(d)
	if n := int(w.Reconciles.Load() - before); n > limit {
		r.violations = append(r.violations, fmt.Errorf("revision %d: %d reconciles in %s", w.Revision(), n, d))
	}
	return err
}

// expectNoWrites waits for settleTime, and then for length. During length, each write is a violation. Reconciles are a
// violation unless maxWait allows them.
func (r *result) expectNoWrites(w *sim.World, length, maxWait time.Duration) error {
	if err := r.pass(w, settleTime, maxReconciles, maxWait); err != nil {
		return err
	}
	before, begin := w.Revision(), time.Now()
	err := r.pass(w, length, 0, maxWait)
	for _, change := range w.History()[before:] {
		if isSeriesOf(change.Object, begin) {
			continue
		}
		r.violations = append(r.violations,
			fmt.Errorf("revision %d: %s writes %s %s, although nothing has changed for %s",
				change.Revision, change.By, change.Kind.Kind, change.Object.GetName(), settleTime))
	}
	return err
}

// isSeriesOf reports whether an object is an Event that was last emitted before instant. If an Event was emitted
// several times, client-go writes the count up to 30 minutes later.
func isSeriesOf(object *unstructured.Unstructured, instant time.Time) bool {
	text, _, _ := unstructured.NestedString(object.Object, "series", "lastObservedTime")
	last, err := time.Parse(time.RFC3339, text)
	return object.GetKind() == "Event" && err == nil && last.Before(instant)
}

// TestIdleDay leaves a Machine unchanged for longer than the resync interval of a real cache. The operator must not
// reconcile it.
func TestIdleDay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		_, err := w.Start(operators[0], "machine")
		must(t, errors.Join(err, w.Admin.Create(t.Context(), machineOf("m", 2))))
		r := &result{}
		must(t, r.expectNoWrites(w, 24*time.Hour, 0))
		if err := errors.Join(r.violations...); err != nil {
			t.Error(err)
		}
	})
}

// TestReconcilesOfFlip counts the reconciles from the time at which a flip is due. The first reconcile turns the switch
// down. The second one writes the status of the Machine. The watch event of the status causes a third one, which does
// nothing.
func TestReconcilesOfFlip(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		_, err := w.Start(operators[0], "machine")
		must(t, errors.Join(err, w.Admin.Create(t.Context(), machineOf("m", 2)), w.Pass(settleTime),
			patch(switchOf("m-1"), `{"spec":{"position":"up"}}`)(t.Context(), w.Admin), w.Pass(time.Second)))
		reconciles, writes := w.Reconciles.Load(), len(w.History())
		must(t, w.Pass(settleTime))
		var changed []string
		for _, change := range w.History()[writes:] {
			if change.Kind.Kind != "Event" {
				changed = append(changed, change.Kind.Kind)
			}
		}
		if want := []string{"Switch", "Machine"}; !slices.Equal(changed, want) {
			t.Errorf("a flip changes %v, want %v", changed, want)
		}
		if n := w.Reconciles.Load() - reconciles; n != 3 {
			t.Errorf("a flip costs %d reconciles, want 3", n)
		}
	})
}

// state returns all objects as JSON, without the fields that depend on time or on the number of writes.
func state(w *sim.World) string {
	var all strings.Builder
	for _, object := range w.Objects() {
		if object.GetKind() == "Event" {
			continue
		}
		object = object.DeepCopy()
		object.SetManagedFields(sorted(object.GetManagedFields()))
		for _, path := range [][]string{
			{"metadata", "uid"}, {"metadata", "resourceVersion"}, {"metadata", "creationTimestamp"},
			{"metadata", "generation"},
			{"metadata", "annotations", v1beta1.FlippedAtAnnotation}, {"status", "lastFlipTime"}, {"status", "seenAt"},
			{"status", "observedGeneration"},
			{"status", "server", "id"}, {"status", "server", "startTime"}, {"status", "retryTime"},
			{"status", "lastUpdateTime"},
		} {
			unstructured.RemoveNestedField(object.Object, path...)
		}
		removeFields(object.Object,
			"deletionTimestamp", "lastTransitionTime", "observedGeneration", "startedAt", "time", "uid")
		data, _ := json.Marshal(object.Object)
		all.Write(append(data, '\n'))
	}
	return all.String()
}

// sorted sorts managed fields by manager. The API server sorts them by the time of the write, in seconds.
func sorted(fields []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	slices.SortFunc(fields, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Operation, b.Operation))
	})
	return fields
}

// removeFields removes fields at every level of a JSON value.
func removeFields(value any, names ...string) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range names {
			delete(value, name)
		}
		for _, member := range value {
			removeFields(member, names...)
		}
	case []any:
		for _, element := range value {
			removeFields(element, names...)
		}
	}
}

// operators are the names of the operator's processes.
var operators = []string{"operator", "another"}

// revisions returns the world's history of Machines and switches.
func revisions(t *testing.T, w *sim.World) (all []invariants.Revision) {
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
		all = append(all, invariants.Revision{Type: change.Type, Object: object, By: process(w, change), At: change.Time})
	}
	return all
}

// process returns the name of the process that made a change, or "" if it was not the operator.
func process(w *sim.World, change sim.Change) string {
	if !byOperator(change) {
		return ""
	}
	ended, _ := slices.BinarySearch(w.Ends[change.By], change.Revision)
	return fmt.Sprint(change.By, ended)
}

// inWorld runs a test with a new world in a synctest bubble.
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

// left returns an error if an object of the kind still exists, or an object that has a controller.
func left(w *sim.World, kind string) error {
	for _, object := range w.Objects() {
		if object.GetKind() == kind || metav1.GetControllerOf(object) != nil {
			return fmt.Errorf("%s %s still exists", object.GetKind(), object.GetName())
		}
	}
	return nil
}

// sameEndState returns a test that runs the scenario under other conditions. The final state must be the same as in
// want.
func (s scenario) sameEndState(want result) func(*testing.T, conditions) {
	return func(t *testing.T, c conditions) {
		t.Helper()
		got := s.run(t, c)
		if !c.missesCreation(got) {
			reportViolations(t, c, got)
		}
		if want, got := want.states[len(want.states)-1], got.states[len(got.states)-1]; want != got {
			t.Errorf("%v: final state\n%s\nwant\n%s", c, got, want)
		}
	}
}

func reportViolations(t *testing.T, c conditions, r result) {
	t.Helper()
	for _, err := range r.violations {
		t.Errorf("%v: %v", c, err)
	}
}

// short reports whether tests run a fixed subset of their cases. It is true with -short and with the race detector.
var short = testing.Short

// stride is the distance between the cases that a short test runs. It has no common factor with the number of faults or
// of kinds, so the subset contains each fault and each kind.
const stride = 11

// inParallel runs all cases, or every eleventh case in a short test. Each of its workers stops after its first failed
// case. It returns the number of selected cases.
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
