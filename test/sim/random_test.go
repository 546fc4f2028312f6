// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/invariants"
	"container.training/useless/test/sim"
)

// Flags of TestRandom. TestYear and TestCrashes run more cases if there are more seeds.
var (
	firstSeed = flag.Uint64("seed", 1, "the first seed of TestRandom")
	seeds     = flag.Uint64("seeds", 200, "the number of seeds that TestRandom runs")
)

// soaking reports whether this is a long run, like make soak. In a long run, faultPairs uses all pairs of faults.
func soaking() bool { return *seeds >= 1_000 }

// TestRandom simulates random actions of users, nodes, the operator and the network. A seed determines the actions. No
// invariant may be violated. After users and faults stop, all objects must soon match their specs. Then the operator
// must write nothing more.
func TestRandom(t *testing.T) {
	n := *seeds
	if short() {
		n = min(n, 20)
	}
	var next, calls atomic.Uint64
	var failed atomic.Bool
	next.Store(*firstSeed)
	start := time.Now()
	group := errgroup.Group{}
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			for seed := next.Add(1) - 1; seed < *firstSeed+n && !failed.Load(); seed = next.Add(1) - 1 {
				run := simulate(t, seed, randomSteps(seed))
				calls.Add(uint64(run.calls))
				if run.err != nil {
					failed.Store(true)
					return fmt.Errorf("seed %d: %w\n%s\nTo reproduce: go test ./test/sim -run TestRandom -seed %d -seeds 1",
						seed, run.err, reduce(t, seed), seed)
				}
				if seed%1000 == 0 {
					t.Logf("seed %d, %d calls, %s", seed, calls.Load(), time.Since(start).Round(time.Second))
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d seeds, %d calls in %s", n, calls.Load(), time.Since(start).Round(time.Millisecond))
}

// maxLog is the maximum number of log lines in a failure message. They are the last lines, which show the failure.
const maxLog = 60

// reduce removes steps while the run still fails, and describes the remaining steps.
func reduce(t *testing.T, seed uint64) string {
	t.Helper()
	steps := randomSteps(seed)
	for size := len(steps) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(steps); {
			fewer := slices.Delete(slices.Clone(steps), i, i+size)
			if simulate(t, seed, fewer).err != nil {
				steps = fewer
			} else {
				i += size
			}
		}
	}
	last := simulate(t, seed, steps)
	var text strings.Builder
	fmt.Fprintf(&text, "%d steps are enough to fail:\n", len(steps))
	for _, a := range steps {
		fmt.Fprintf(&text, "  %s\n", a)
	}
	log := strings.SplitAfter(last.log.String(), "\n")
	fmt.Fprintf(&text, "Error: %v\n%s", last.err, strings.Join(log[max(0, len(log)-maxLog):], ""))
	return text.String()
}

// A randomStep is one step of a run. It contains the time, or the maximum number of calls, until the next step.
type randomStep struct {
	what  string
	do    func(context.Context, *randomRun) error
	calls int           // the maximum number of calls served until the next step, if pause is 0
	pause time.Duration // the time until the next step
}

func (a randomStep) String() string {
	if a.pause > 0 {
		return fmt.Sprintf("%s; then wait %s", a.what, a.pause)
	}
	return fmt.Sprintf("%s; then serve at most %d calls", a.what, a.calls)
}

// A randomRun executes random steps.
type randomRun struct {
	profile

	world       *sim.World
	random      *rand.Rand
	faults      map[int]fault // the key is the index of a write, from 0, counted over all operators
	writes      int
	calls       int
	callsInStep int             // calls in the current step
	views       map[string]view // the stale caches of the first operator, by kind
	missed      map[string]int  // the number of events that the first operator misses next, by kind
	log         strings.Builder // steps and write calls
	err         error
}

// A view is the state of a stale cache for one kind.
type view struct {
	revision int64
	steps    int // the number of steps until the cache is current again
}

// A cache is stale for at most staleSteps steps. If a step has many calls, the cache is stale for at most staleCalls of
// them.
const (
	staleSteps = 2
	staleCalls = 100
)

// simulate executes steps in a new world and checks the invariants.
func simulate(t *testing.T, seed uint64, steps []randomStep) (run *randomRun) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := sim.NewWorld(kinds...)
		if err != nil {
			t.Fatal(err)
		}
		run = &randomRun{
			profile: profileOf(seed), world: w, random: rand.New(rand.NewPCG(seed, 1)),
			faults: map[int]fault{}, views: map[string]view{}, missed: map[string]int{},
		}
		w.Choose, w.Latency = run.choose, 10*time.Millisecond
		if run.err = run.start(); run.err == nil {
			run.err = run.runSteps(t.Context(), steps)
		}
		run.err = errors.Join(run.err, w.End())
		if run.err == nil {
			run.err = errors.Join(append(machineViolations(seed, revisions(t, w)), violations(w.History())...)...)
		}
	})
	return run
}

// maxLag is the longest time for which the checker accepts a stale cache. A stale view lasts for staleSteps steps of at
// most 40 s. A client misses events for one step at most. Then client-go lists again within a minute.
const maxLag = 2 * time.Minute

// machineViolations checks the invariants of Machines and switches.
func machineViolations(seed uint64, revisions []invariants.Revision) []error {
	if seed%3 == withRecreation { // one operator that misses no event, so the check is exact
		return invariants.Check(revisions)
	}
	c := invariants.NewChecker(maxLag)
	for _, r := range revisions {
		c.Add(r)
	}
	return c.Violations()
}

// start starts the operator.
func (run *randomRun) start() error {
	o, err := run.world.StartWithView(run.viewOf, operators[0], run.controller)
	if err == nil {
		o.SkipEvents(run.misses)
	}
	return err
}

// choose selects the next call and its outcome. It selects the first call more often than the others, so that most runs
// make progress.
func (run *randomRun) choose(calls []sim.Call) (int, sim.Outcome) {
	if run.callsInStep++; run.callsInStep == staleCalls {
		run.refresh(true) // two leaders with different caches could overwrite each other forever
	}
	i := 0
	if run.random.IntN(2) == 0 {
		i = run.random.IntN(len(calls))
	}
	run.calls++
	call := calls[i]
	if !call.Writes() {
		return i, sim.Outcome{}
	}
	f := run.faults[run.writes]
	run.writes++
	fmt.Fprintf(&run.log, "%s %s %s\n", time.Now().Format("15:04:05.000"), call, f.name)
	return i, f.outcome
}

// viewOf is the View of the first operator. It returns the newest revision of a kind that the operator's cache shows.
func (run *randomRun) viewOf(k *sim.Kind, newest int64) int64 {
	if v, ok := run.views[k.Kind]; ok {
		return v.revision
	}
	return newest
}

// misses reports whether the first operator misses a change, see SkipEvents. It counts down the events to miss. If
// since is not empty, the event was already skipped. Here, a skipped event never arrives later.
func (run *randomRun) misses(change sim.Change, since []sim.Change) bool {
	if len(since) > 0 {
		return true
	}
	if run.missed[change.Kind.Kind] == 0 {
		return false
	}
	run.missed[change.Kind.Kind]--
	return true
}

// runSteps executes all steps, stops all disturbances, and checks the final state.
func (run *randomRun) runSteps(ctx context.Context, steps []randomStep) error {
	for _, a := range steps {
		fmt.Fprintf(&run.log, "-- %s\n", a)
		err := a.do(ctx, run)
		// the API server may reject a user's request
		if status := apierrors.APIStatus(nil); err != nil && !errors.As(err, &status) {
			return fmt.Errorf("%s: %w", a.what, err)
		}
		if a.pause > 0 {
			err = run.world.Pass(a.pause)
		} else {
			err = run.world.Serve(a.calls)
		}
		if err != nil {
			return err
		}
		run.refresh(false)
		run.callsInStep = 0
	}
	if err := run.endDisturbances(ctx); err != nil {
		return err
	}
	return run.settle(ctx, run)
}

// refresh counts down the steps of each stale view, and deletes the views that have no steps left. If all is true, it
// deletes all views and all events to miss. Then it wakes the watches, and expires each watch that missed an event.
func (run *randomRun) refresh(all bool) {
	run.world.Locked(func() {
		for kind, v := range run.views {
			if v.steps--; v.steps <= 0 || all {
				delete(run.views, kind)
			} else {
				run.views[kind] = v
			}
		}
		if all {
			clear(run.missed)
		}
	})
	for _, o := range run.world.Operators {
		o.WakeWatches()
		o.ExpireWatches()
	}
}

// maxWrites is the maximum number of writes per Machine after the disturbances end. The operator writes the finalizer,
// and creates, adopts, releases and deletes switches. It sets seenAt and the position of switches that are up. After
// each of these writes, it may write the status.
const maxWrites = 60

// endDisturbances stops the second leader and faults, and removes everything that blocks the operator.
func (run *randomRun) endDisturbances(ctx context.Context) error {
	w := run.world
	if second := w.Process(operators[1]); second != nil {
		if err := w.Stop(second); err != nil {
			return err
		}
	}
	for _, object := range w.Objects() {
		if err := run.unblock(ctx, object); err != nil {
			return err
		}
	}
	clear(run.faults)
	run.refresh(true)
	return nil
}

// settleMachines waits for 2*settleTime. Then all Machines must match their specs, after at most maxWrites writes per
// Machine. The operator must write nothing for another hour. Then settleMachines deletes the Machines.
func settleMachines(ctx context.Context, run *randomRun) error {
	w := run.world
	writes, r := run.writes, result{}
	if err := r.pass(w, 2*settleTime, maxReconciles*len(machines), 0); err != nil {
		return err
	}
	all := &v1beta1.MachineList{}
	if err := w.Admin.List(ctx, all); err != nil {
		return err
	}
	if n := run.writes - writes; n > maxWrites*max(1, len(all.Items)) {
		return fmt.Errorf("%d writes until %d Machines match their specs", n, len(all.Items))
	}
	for i := range all.Items {
		if err := run.matches(ctx, &all.Items[i]); err != nil {
			return err
		}
	}
	if err := r.expectNoWrites(w, time.Hour, 0); err != nil || len(r.violations) > 0 {
		return errors.Join(append(r.violations, err)...)
	}
	return run.end(ctx)
}

// unblock removes the annotation that pauses the operator for an object. If the object has holdFinalizer, unblock
// removes all its finalizers. It deletes a quota or a Pod that blocks the operator.
func (run *randomRun) unblock(ctx context.Context, object client.Object) error {
	object = object.DeepCopyObject().(client.Object)
	switch object.GetObjectKind().GroupVersionKind().Kind {
	case "ResourceQuota":
		return run.world.Admin.Delete(ctx, object)
	case "Pod":
		if metav1.GetControllerOf(object) == nil { // the operator may need its name for the Pod of a VirtualMachine
			return run.world.Admin.Delete(ctx, object)
		}
	case "Machine", "Switch", "VirtualMachine":
		err := patch(object, `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)(ctx,
			run.world.Admin)
		if slices.Contains(object.GetFinalizers(), holdFinalizer) {
			err = errors.Join(err, patch(object, `{"metadata":{"finalizers":null}}`)(ctx, run.world.Admin))
		}
		return err
	}
	return nil
}

// matches returns an error if a Machine does not match its spec.
func (run *randomRun) matches(ctx context.Context, m *v1beta1.Machine) error {
	if m.Status.ObservedGeneration != m.Generation ||
		!meta.IsStatusConditionTrue(m.Status.Conditions, v1beta1.ConditionReady) {
		return fmt.Errorf("Machine %s of generation %d is not ready: %+v", m.Name, m.Generation, m.Status)
	}
	selector, err := m.SwitchSelector()
	if err != nil {
		return err
	}
	all := &v1beta1.SwitchList{}
	if err := run.world.Admin.List(ctx, all); err != nil {
		return err
	}
	n := int32(0)
	for i := range all.Items {
		sw := &all.Items[i]
		if !sw.DeletionTimestamp.IsZero() {
			continue
		}
		mine, problem := belongs(sw, m, selector)
		if problem != "" {
			return fmt.Errorf("Machine %s: switch %s %s", m.Name, sw.Name, problem)
		}
		if mine {
			n++
		}
	}
	if n != m.Spec.Switches.Count || m.Status.Switches.Total != n {
		return fmt.Errorf("Machine %s has %d switches, its spec has %d and its status %d", m.Name, n,
			m.Spec.Switches.Count, m.Status.Switches.Total)
	}
	return nil
}

// belongs reports whether the Machine controls a switch, and returns what is wrong with the switch.
func belongs(sw *v1beta1.Switch, m *v1beta1.Machine, selector labels.Selector) (mine bool, problem string) {
	matches := selector.Matches(labels.Set(sw.Labels))
	mine = metav1.IsControlledBy(sw, m)
	switch {
	case !mine && matches && metav1.GetControllerOf(sw) == nil:
		problem = "is not adopted"
	case mine && !matches:
		problem = "is not released"
	case mine && sw.Spec.Position != v1beta1.PositionDown:
		problem = "is not turned down"
	}
	return mine, problem
}

// end deletes all Machines, and checks that no object with a controller remains.
func (run *randomRun) end(ctx context.Context) error {
	all := &v1beta1.MachineList{}
	if err := run.world.Admin.List(ctx, all); err != nil {
		return err
	}
	for i := range all.Items {
		if err := run.world.Admin.Delete(ctx, &all.Items[i]); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if err := run.world.Pass(settleTime); err != nil {
		return err
	}
	return left(run.world, "Machine")
}

// holdFinalizer is a finalizer of another controller.
const holdFinalizer = "example.com/hold"

// The seed modulo 3 selects one of these disturbances.
const (
	withSecondLeader = iota // two operators lead at the same time
	withRecreation          // users create deleted Machines again
	withMissedEvents        // the operator misses an event; this does not happen in a cluster
)

// A profile defines the controller of a random run, the possible steps, and the final checks.
type profile struct {
	controller string
	steps      func(r *rand.Rand, seed uint64, i int) []randomStep
	pauses     []time.Duration // possible times between two steps
	settle     func(context.Context, *randomRun) error
}

// profileOf returns the profile of a seed. Most seeds test Machines.
func profileOf(seed uint64) profile {
	switch seed % 10 {
	case 8:
		return virtualMachineProfile
	case 9:
		return scheduleProfile
	}
	return machineProfile
}

var machineProfile = profile{
	controller: "machine", steps: machineSteps,
	pauses: []time.Duration{time.Second, 3 * time.Second, 6 * time.Second, 40 * time.Second}, settle: settleMachines,
}

// randomSteps returns the steps of a seed.
func randomSteps(seed uint64) []randomStep {
	r, p := rand.New(rand.NewPCG(seed, 0)), profileOf(seed)
	steps := make([]randomStep, 20+r.IntN(80))
	for i := range steps {
		some := p.steps(r, seed, i)
		steps[i] = some[r.IntN(len(some))]
		switch r.IntN(4) {
		case 0:
			steps[i].pause = p.pauses[r.IntN(len(p.pauses))]
		case 1:
			steps[i].calls = 1000 // more than the number of pending calls
		default:
			steps[i].calls = r.IntN(6)
		}
	}
	return steps
}

// machineSteps returns the possible steps for Machines. A run has only one of withSecondLeader, withRecreation and
// withMissedEvents. Together, they could cause an extra switch for a moment, or two flips in an interval.
func machineSteps(r *rand.Rand, seed uint64, i int) []randomStep {
	name := machines[r.IntN(2)]
	some := slices.Concat(userMachineSteps(r, name), userSwitchSteps(r, name), disturbances(r, twoMachines.kinds))
	switch {
	case i < len(machines):
		return createSteps(r, machines[i])
	case seed%3 == withSecondLeader:
		return append(some, toggleSecondLeader)
	case seed%3 == withRecreation:
		return append(some, createSteps(r, name)...)
	}
	return append(some, missEventSteps(r)...)
}

// machines are the names of the Machines.
var machines = []string{"m", "n"}

// createSteps returns the same step several times, so that it is chosen often.
func createSteps(r *rand.Rand, name string) []randomStep {
	n := 1 + r.IntN(4)
	made := randomStep{what: fmt.Sprintf("Machine %s: create with %d switches", name, n),
		do: byUser(create(machineOf(name, n)))}
	return []randomStep{made, made, made, made}
}

// userMachineSteps returns the possible steps of users for a Machine.
func userMachineSteps(r *rand.Rand, name string) []randomStep {
	n, seconds := 1+r.IntN(4), []int{1, 2, 5, 30}
	policy := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
		metav1.DeletePropagationOrphan}[r.IntN(3)]
	m := machine(name)
	change := func(what, change string, args ...any) randomStep {
		return randomStep{what: fmt.Sprintf("Machine %s: %s", name, what),
			do: byUser(patch(m, fmt.Sprintf(change, args...)))}
	}
	return []randomStep{
		change(fmt.Sprintf("scale to %d", n), `{"spec":{"switches":{"count":%d}}}`, n),
		change(fmt.Sprintf("scale to %d", 5-n), `{"spec":{"switches":{"count":%d}}}`, 5-n),
		change("turn all up", `{"spec":{"position":"up"}}`),
		change("change the delay", `{"spec":{"flip":{"delaySeconds":%d}}}`, seconds[r.IntN(4)]),
		change("change the interval", `{"spec":{"flip":{"intervalSeconds":%d}}}`, seconds[r.IntN(4)]),
		change("pause", `{"metadata":{"annotations":{%q:"true"}}}`, v1beta1.PausedAnnotation),
		change("resume", `{"metadata":{"annotations":{%q:null}}}`, v1beta1.PausedAnnotation),
		{what: fmt.Sprintf("Machine %s: delete, %s", name, policy),
			do: byUser(remove(m, client.PropagationPolicy(policy)))},
	}
}

// userSwitchSteps returns the possible steps of users for a random switch and for a quota. The argument name is the
// Machine for which some steps label the switch.
func userSwitchSteps(r *rand.Rand, name string) []randomStep {
	switchName := fmt.Sprintf("%s-%d", machines[r.IntN(2)], r.IntN(4))
	sw := switchOf(switchName)
	labelled := sw.DeepCopy()
	labelled.Labels = map[string]string{v1beta1.MachineLabel: name}
	change := func(what, change string, args ...any) randomStep {
		return randomStep{what: fmt.Sprintf("switch %s: %s", switchName, what),
			do: byUser(patch(sw, fmt.Sprintf(change, args...)))}
	}
	up := change("turn up", `{"spec":{"position":"up"}}`)
	return []randomStep{
		up, up, up, up,
		change("turn down", `{"spec":{"position":"down"}}`),
		change("label for "+name, `{"metadata":{"labels":{"machine":%q}}}`, name),
		change("remove the label", `{"metadata":{"labels":{"machine":null}}}`),
		change("pause", `{"metadata":{"annotations":{%q:"true"}}}`, v1beta1.PausedAnnotation),
		change("resume", `{"metadata":{"annotations":{%q:null}}}`, v1beta1.PausedAnnotation),
		change("add a finalizer", `{"metadata":{"finalizers":[%q]}}`, holdFinalizer),
		change("remove the finalizers", `{"metadata":{"finalizers":null}}`),
		{what: "switch " + switchName + ": create for " + name, do: byUser(create(labelled))},
		{what: "switch " + switchName + ": delete", do: byUser(remove(sw))},
		{what: "create a quota", do: byUser(create(quotaOf(int64(r.IntN(5)))))},
		{what: "delete the quota", do: byUser(remove(quotaOf(0)))},
	}
}

// byUser returns a function for the field do of a randomStep. This function calls do with the Admin client.
func byUser(do func(context.Context, client.Client) error) func(context.Context, *randomRun) error {
	return func(ctx context.Context, run *randomRun) error { return do(ctx, run.world.Admin) }
}

// quotaOf returns a quota of n switches.
func quotaOf(n int64) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "quota"}}
	q.Spec.Hard = corev1.ResourceList{"count/switches.useless.container.training": *resource.NewQuantity(n,
		resource.DecimalSI)}
	return q
}

// disturbances returns faults, stale caches and crashes.
func disturbances(r *rand.Rand, kinds []string) []randomStep {
	f, later := faults[r.IntN(len(faults))], r.IntN(6)
	kind := kinds[r.IntN(len(kinds))]
	wrong := randomStep{what: fmt.Sprintf("after %d more writes, one fails: %s", later, f.name),
		do: func(_ context.Context, run *randomRun) error {
			run.faults[run.writes+later] = f
			return nil
		}}
	return []randomStep{
		wrong, wrong, wrong, wrong, wrong,
		{what: "the cache of " + kind + " stops", do: func(_ context.Context, run *randomRun) error {
			revision := run.world.Revision()
			run.world.Locked(func() { run.views[kind] = view{revision, staleSteps} })
			return nil
		}},
		{what: "crash", do: func(_ context.Context, run *randomRun) error {
			return errors.Join(run.world.Stop(run.world.Process(operators[0])), run.start())
		}},
	}
}

// missEventSteps returns the same step several times, so that it is chosen often.
func missEventSteps(r *rand.Rand) []randomStep {
	kind := []string{"Machine", "Switch"}[r.IntN(2)]
	missed := randomStep{what: "an event of " + kind + " is missed", do: func(_ context.Context, run *randomRun) error {
		run.world.Locked(func() { run.missed[kind]++ })
		return nil
	}}
	return []randomStep{missed, missed, missed}
}

// toggleSecondLeader starts or stops a second operator.
var toggleSecondLeader = randomStep{what: "start or stop a second leader",
	do: func(_ context.Context, run *randomRun) error {
		if second := run.world.Process(operators[1]); second != nil {
			return run.world.Stop(second)
		}
		_, err := run.world.Start(operators[1], "machine")
		return err
	}}
