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
	"container.training/useless/test/history"
	"container.training/useless/test/sim"
)

// What TestRandom runs.
var (
	firstSeed = flag.Uint64("seed", 1, "the first seed of TestRandom")
	seeds     = flag.Uint64("seeds", 200, "how many seeds TestRandom runs")
)

// soaking tells whether there is time for all that there is to try, as in make soak.
func soaking() bool { return *seeds >= 1_000 }

// TestRandom has users, the operator, nodes and the network do things at random, as each seed makes them. Whatever they do, nothing
// must happen that must not; and when they have stopped, everything soon is as it should be, and nothing more is written.
func TestRandom(t *testing.T) {
	n := *seeds
	if short() {
		n = min(n, 20)
	}
	var next, calls, failed atomic.Uint64
	next.Store(*firstSeed)
	start := time.Now()
	told := start
	group := errgroup.Group{}
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			for seed := next.Add(1) - 1; seed < *firstSeed+n && failed.Load() == 0; seed = next.Add(1) - 1 {
				p := perform(t, seed, randomActs(seed))
				calls.Add(uint64(p.calls))
				if p.err != nil {
					failed.Store(seed)
					return fmt.Errorf("%w\n%s", p.err, shrunk(t, seed))
				}
				if seed%1000 == 0 {
					t.Logf("seed %d, %d calls, %s", seed, calls.Load(), time.Since(told).Round(time.Second))
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Errorf("seed %d: %v\nTo see it again: go test ./test/sim -run TestRandom -seed %d -seeds 1", failed.Load(), err, failed.Load())
	}
	t.Logf("%d seeds, %d calls in %s", n, calls.Load(), time.Since(start).Round(time.Millisecond))
}

// maxLog is how many lines of what has happened are shown.
const maxLog = 60

// shrunk names acts that are enough to fail, of which none can be left out.
func shrunk(t *testing.T, seed uint64) string {
	t.Helper()
	acts := randomActs(seed)
	for size := len(acts) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(acts); {
			fewer := slices.Delete(slices.Clone(acts), i, i+size)
			if perform(t, seed, fewer).err != nil {
				acts = fewer
			} else {
				i += size
			}
		}
	}
	last := perform(t, seed, acts)
	var text strings.Builder
	fmt.Fprintf(&text, "%d of its acts are enough:\n", len(acts))
	for _, a := range acts {
		fmt.Fprintf(&text, "  %s\n", a)
	}
	log := strings.SplitAfter(last.log.String(), "\n")
	fmt.Fprintf(&text, "Then: %v\n%s", last.err, strings.Join(log[:min(len(log), maxLog)], ""))
	return text.String()
}

// An act is one thing that happens, and what time passes until the next one.
type act struct {
	what  string
	do    func(context.Context, *play) error
	calls int           // are served until the next one, if no time passes
	lasts time.Duration // until the next one
}

func (a act) String() string {
	if a.lasts > 0 {
		return fmt.Sprintf("%s; then %s pass", a.what, a.lasts)
	}
	return fmt.Sprintf("%s; then %d calls are served", a.what, a.calls)
}

// A play is what comes of some acts.
type play struct {
	subject

	world    *sim.World
	random   *rand.Rand
	faults   map[int]fault // of the operators' writes from now on
	writes   int
	calls    int
	sinceAct int             // calls
	views    map[string]view // of the first operator, of kinds
	missed   map[string]int  // how many changes of kinds the first operator does not hear of
	log      strings.Builder // of calls
	err      error
}

// A view is how much of a kind is seen.
type view struct {
	revision int64
	acts     int // for which it stays so
}

// For how many acts, and how many calls of one act, the operator may not know of what there is.
const (
	staleActs  = 2
	staleCalls = 100
)

// perform has acts happen in a world, and looks at what comes of it.
func perform(t *testing.T, seed uint64, acts []act) (p *play) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := sim.NewWorld(kinds...)
		if err != nil {
			t.Fatal(err)
		}
		p = &play{subject: subjectOf(seed), world: w, random: rand.New(rand.NewPCG(seed, 1)), faults: map[int]fault{}, views: map[string]view{}, missed: map[string]int{}}
		w.Choose, w.Latency = p.choose, 10*time.Millisecond
		if p.err = p.start(); p.err == nil {
			p.err = p.perform(t.Context(), acts)
		}
		p.err = errors.Join(p.err, w.End())
		if p.err == nil {
			p.err = errors.Join(append(judged(seed, revisions(t, w)), misdeeds(w.History())...)...)
		}
	})
	return p
}

// maxLag is for how long one of two leaders, or who does not hear of an event, may not know of what there is: an act, after which
// what was missed is read anew, when client-go has waited for up to a minute.
const maxLag = 2 * time.Minute

// judged reports what must not have become of Machines and switches.
func judged(seed uint64, revisions []history.Revision) []error {
	if seed%3 == alone {
		return history.Check(revisions)
	}
	c := history.NewChecker(maxLag)
	for _, r := range revisions {
		c.See(r)
	}
	return c.Faults()
}

// start starts an operator.
func (p *play) start() error {
	o, err := p.world.StartSeeing(p.sees, operators[0], p.controller)
	if err == nil {
		o.Miss(p.misses)
	}
	return err
}

// choose has one call served or another, and go wrong if one of them is to.
func (p *play) choose(calls []sim.Call) (int, sim.Fate) {
	if p.sinceAct++; p.sinceAct == staleCalls {
		p.see(true) // two leaders who know different things write by turns for as long
	}
	i := 0
	if p.random.IntN(2) == 0 {
		i = p.random.IntN(len(calls))
	}
	p.calls++
	call := calls[i]
	if !call.Writes() {
		return i, sim.Fate{}
	}
	f := p.faults[p.writes]
	p.writes++
	fmt.Fprintf(&p.log, "%s %s %s\n", time.Now().Format("15:04:05.000"), call, f.name)
	return i, f.fate
}

// sees is the view of the first operator.
func (p *play) sees(k *sim.Kind, newest int64) int64 {
	if v, ok := p.views[k.Kind]; ok {
		return v.revision
	}
	return newest
}

// misses tells whether the first operator does not hear of a change.
func (p *play) misses(change sim.Change, since []sim.Change) bool {
	if len(since) > 0 || p.missed[change.Kind.Kind] == 0 {
		return len(since) > 0
	}
	p.missed[change.Kind.Kind]--
	return true
}

// perform has all acts happen, and then everything come to rest.
func (p *play) perform(ctx context.Context, acts []act) error {
	for _, a := range acts {
		fmt.Fprintf(&p.log, "-- %s\n", a)
		err := a.do(ctx, p)
		if status := apierrors.APIStatus(nil); err != nil && !errors.As(err, &status) { // users may be refused
			return fmt.Errorf("%s: %w", a.what, err)
		}
		if a.lasts > 0 {
			err = p.world.Pass(a.lasts)
		} else {
			err = p.world.Serve(a.calls)
		}
		if err != nil {
			return err
		}
		p.see(false)
		p.sinceAct = 0
	}
	if err := p.undisturb(ctx); err != nil {
		return err
	}
	return p.calm(ctx, p)
}

// see has the operator see again what it has not for long enough, or all at once.
func (p *play) see(all bool) {
	p.world.Hold(func() {
		for kind, v := range p.views {
			if v.acts--; v.acts <= 0 || all {
				delete(p.views, kind)
			} else {
				p.views[kind] = v
			}
		}
		if all {
			clear(p.missed)
		}
	})
	for _, o := range p.world.Operators {
		o.Look()
		o.Reread()
	}
}

// mostWrites is how many writes it takes each Machine at most to be as it should be, once nothing is in the way: a finalizer,
// all of its switches, as many that are too many, notes of those that are up and their flips, and the status after each.
const mostWrites = 60

// undisturb undoes what keeps anything from being as it should be.
func (p *play) undisturb(ctx context.Context) error {
	w := p.world
	for len(w.Operators) > 1 {
		if err := w.Stop(w.Operators[1]); err != nil {
			return err
		}
	}
	for _, object := range w.Objects() {
		if err := p.unblock(ctx, object); err != nil {
			return err
		}
	}
	clear(p.faults)
	p.see(true)
	return nil
}

// calmMachines waits until Machines are as they should be, then for an hour without a write, and then deletes them.
func calmMachines(ctx context.Context, p *play) error {
	w := p.world
	writes, r := p.writes, record{}
	if err := r.pass(w, 2*quiet, mostReconciles*len(machines), 0); err != nil {
		return err
	}
	all := &v1beta1.MachineList{}
	if err := w.Admin.List(ctx, all); err != nil {
		return err
	}
	if n := p.writes - writes; n > mostWrites*max(1, len(all.Items)) {
		return fmt.Errorf("%d writes until %d Machines are as they should be", n, len(all.Items))
	}
	for i := range all.Items {
		if err := p.matches(ctx, &all.Items[i]); err != nil {
			return err
		}
	}
	if err := r.rest(w, time.Hour, 0); err != nil || len(r.faults) > 0 {
		return errors.Join(append(r.faults, err)...)
	}
	return p.end(ctx)
}

// unblock takes away what users have put in the operator's way.
func (p *play) unblock(ctx context.Context, object client.Object) error {
	object = object.DeepCopyObject().(client.Object)
	switch object.GetObjectKind().GroupVersionKind().Kind {
	case "ResourceQuota":
		return p.world.Admin.Delete(ctx, object)
	case "Pod":
		if metav1.GetControllerOf(object) == nil { // its name is in the way
			return p.world.Admin.Delete(ctx, object)
		}
	case "Machine", "Switch", "VirtualMachine":
		err := patch(object, `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)(ctx, p.world.Admin)
		if slices.Contains(object.GetFinalizers(), hold) {
			err = errors.Join(err, patch(object, `{"metadata":{"finalizers":null}}`)(ctx, p.world.Admin))
		}
		return err
	}
	return nil
}

// matches reports what a Machine has that it does not ask for.
func (p *play) matches(ctx context.Context, m *v1beta1.Machine) error {
	if m.Status.ObservedGeneration != m.Generation || !meta.IsStatusConditionTrue(m.Status.Conditions, v1beta1.ConditionReady) {
		return fmt.Errorf("Machine %s of generation %d is not ready: %+v", m.Name, m.Generation, m.Status)
	}
	selector, err := m.SwitchSelector()
	if err != nil {
		return err
	}
	all := &v1beta1.SwitchList{}
	if err := p.world.Admin.List(ctx, all); err != nil {
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
		return fmt.Errorf("Machine %s has %d switches, asks for %d and says %d", m.Name, n, m.Spec.Switches.Count, m.Status.Switches.Total)
	}
	return nil
}

// belongs reports whether a switch is a Machine's, and what is wrong with it.
func belongs(sw *v1beta1.Switch, m *v1beta1.Machine, selector labels.Selector) (mine bool, problem string) {
	matches := selector.Matches(labels.Set(sw.Labels))
	mine = metav1.IsControlledBy(sw, m)
	switch {
	case !mine && matches && metav1.GetControllerOf(sw) == nil:
		problem = "is not adopted"
	case mine && !matches:
		problem = "is not let go"
	case mine && sw.Spec.Position != v1beta1.PositionDown:
		problem = "is not turned down"
	case mine && sw.Status.SeenAt != nil:
		problem = "is still noted as up"
	}
	return mine, problem
}

// end deletes all Machines: nothing that they control stays.
func (p *play) end(ctx context.Context) error {
	all := &v1beta1.MachineList{}
	if err := p.world.Admin.List(ctx, all); err != nil {
		return err
	}
	for i := range all.Items {
		if err := p.world.Admin.Delete(ctx, &all.Items[i]); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if err := p.world.Pass(quiet); err != nil {
		return err
	}
	return left(p.world, "Machine")
}

// hold is somebody else's finalizer.
const hold = "example.com/hold"

// What a seed is about, modulo 3: another operator comes to lead beside the first, or Machines are made anew, or the operator does
// not hear of an event, which a watch never leaves out.
const (
	beside = iota
	alone
	deaf
)

// A subject is what the acts of a seed are about.
type subject struct {
	controller string
	acts       func(r *rand.Rand, seed uint64, i int) []act
	lasts      []time.Duration // between two acts
	calm       func(context.Context, *play) error
}

// subjectOf is what a seed is about: most are about Machines.
func subjectOf(seed uint64) subject {
	switch seed % 10 {
	case 8:
		return randomServers
	case 9:
		return randomSchedules
	}
	return randomMachines
}

var randomMachines = subject{
	controller: "machine", acts: machineActs,
	lasts: []time.Duration{time.Second, 3 * time.Second, 6 * time.Second, 40 * time.Second}, calm: calmMachines,
}

// randomActs are what a seed makes happen.
func randomActs(seed uint64) []act {
	r, about := rand.New(rand.NewPCG(seed, 0)), subjectOf(seed)
	acts := make([]act, 20+r.IntN(80))
	for i := range acts {
		some := about.acts(r, seed, i)
		acts[i] = some[r.IntN(len(some))]
		switch r.IntN(4) {
		case 0:
			acts[i].lasts = about.lasts[r.IntN(len(about.lasts))]
		case 1:
			acts[i].calls = 1000 // all
		default:
			acts[i].calls = r.IntN(6)
		}
	}
	return acts
}

// machineActs are what can happen to Machines. No two of what a seed can be about come together: there could be one switch too many
// for a moment, or two flips in an interval.
func machineActs(r *rand.Rand, seed uint64, i int) []act {
	name := machines[r.IntN(2)]
	some := slices.Concat(usersOnMachines(r, name), usersOnSwitches(r, name), disturbances(r, two.kinds))
	switch {
	case i < len(machines):
		return creations(r, machines[i])
	case seed%3 == beside:
		return append(some, anotherLeader)
	case seed%3 == alone:
		return append(some, creations(r, name)...)
	}
	return append(some, deafness(r)...)
}

// machines are the names of those that there can be.
var machines = []string{"m", "n"}

// creations are of a Machine; there are several, so that they come often.
func creations(r *rand.Rand, name string) []act {
	n := 1 + r.IntN(4)
	made := act{what: fmt.Sprintf("Machine %s: create with %d switches", name, n), do: byUser(create(machineOf(name, n)))}
	return []act{made, made, made, made}
}

// usersOnMachines are what users do about a Machine.
func usersOnMachines(r *rand.Rand, name string) []act {
	n, seconds := 1+r.IntN(4), []int{1, 2, 5, 30}
	policy := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}[r.IntN(3)]
	m := machine(name)
	change := func(what, change string, args ...any) act {
		return act{what: fmt.Sprintf("Machine %s: %s", name, what), do: byUser(patch(m, fmt.Sprintf(change, args...)))}
	}
	return []act{
		change(fmt.Sprintf("scale to %d", n), `{"spec":{"switches":{"count":%d}}}`, n),
		change(fmt.Sprintf("scale to %d", 5-n), `{"spec":{"switches":{"count":%d}}}`, 5-n),
		change("turn all up", `{"spec":{"position":"up"}}`),
		change("another delay", `{"spec":{"flip":{"delaySeconds":%d}}}`, seconds[r.IntN(4)]),
		change("another interval", `{"spec":{"flip":{"intervalSeconds":%d}}}`, seconds[r.IntN(4)]),
		change("pause", `{"metadata":{"annotations":{%q:"true"}}}`, v1beta1.PausedAnnotation),
		change("go on", `{"metadata":{"annotations":{%q:null}}}`, v1beta1.PausedAnnotation),
		{what: fmt.Sprintf("Machine %s: delete, %s", name, policy), do: byUser(remove(m, client.PropagationPolicy(policy)))},
	}
}

// usersOnSwitches are what users do about a switch.
func usersOnSwitches(r *rand.Rand, name string) []act {
	switchName := fmt.Sprintf("%s-%d", machines[r.IntN(2)], r.IntN(4))
	sw := switchOf(switchName)
	labelled := sw.DeepCopy()
	labelled.Labels = map[string]string{v1beta1.MachineLabel: name}
	change := func(what, change string, args ...any) act {
		return act{what: fmt.Sprintf("switch %s: %s", switchName, what), do: byUser(patch(sw, fmt.Sprintf(change, args...)))}
	}
	up := change("turn up", `{"spec":{"position":"up"}}`)
	return []act{
		up, up, up, up,
		change("turn down", `{"spec":{"position":"down"}}`),
		change("label for "+name, `{"metadata":{"labels":{"machine":%q}}}`, name),
		change("take the label away", `{"metadata":{"labels":{"machine":null}}}`),
		change("pause", `{"metadata":{"annotations":{%q:"true"}}}`, v1beta1.PausedAnnotation),
		change("go on", `{"metadata":{"annotations":{%q:null}}}`, v1beta1.PausedAnnotation),
		change("hold", `{"metadata":{"finalizers":[%q]}}`, hold),
		change("let go", `{"metadata":{"finalizers":null}}`),
		{what: "switch " + switchName + ": create for " + name, do: byUser(create(labelled))},
		{what: "switch " + switchName + ": delete", do: byUser(remove(sw))},
		{what: "a quota", do: byUser(create(quotaOf(int64(r.IntN(5)))))},
		{what: "no quota", do: byUser(remove(quotaOf(0)))},
	}
}

// byUser has a user do something.
func byUser(do func(context.Context, client.Client) error) func(context.Context, *play) error {
	return func(ctx context.Context, p *play) error { return do(ctx, p.world.Admin) }
}

// quotaOf allows so many switches.
func quotaOf(n int64) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "quota"}}
	q.Spec.Hard = corev1.ResourceList{"count/switches.useless.container.training": *resource.NewQuantity(n, resource.DecimalSI)}
	return q
}

// disturbances are what goes wrong.
func disturbances(r *rand.Rand, kinds []string) []act {
	f, later := faults[r.IntN(len(faults))], r.IntN(6)
	kind := kinds[r.IntN(len(kinds))]
	wrong := act{what: fmt.Sprintf("write %d from now: %s", later, f.name), do: func(_ context.Context, p *play) error {
		p.faults[p.writes+later] = f
		return nil
	}}
	return []act{
		wrong, wrong, wrong, wrong, wrong,
		{what: "the cache of " + kind + " stops", do: func(_ context.Context, p *play) error {
			revision := p.world.Revision()
			p.world.Hold(func() { p.views[kind] = view{revision, staleActs} })
			return nil
		}},
		{what: "crash", do: func(_ context.Context, p *play) error {
			return errors.Join(p.world.Stop(p.world.Operators[0]), p.start())
		}},
	}
}

// deafness is not to hear of an event; there are several, so that it comes often.
func deafness(r *rand.Rand) []act {
	kind := []string{"Machine", "Switch"}[r.IntN(2)]
	missed := act{what: "an event of " + kind + " is not heard", do: func(_ context.Context, p *play) error {
		p.world.Hold(func() { p.missed[kind]++ })
		return nil
	}}
	return []act{missed, missed, missed}
}

// anotherLeader is there beside the first one, and later no more.
var anotherLeader = act{what: "another leader comes, or goes", do: func(_ context.Context, p *play) error {
	if len(p.world.Operators) > 1 {
		return p.world.Stop(p.world.Operators[1])
	}
	_, err := p.world.Start(operators[1], "machine")
	return err
}}
