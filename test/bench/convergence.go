// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"container.training/useless/hack/cluster"
)

// A contender makes children for parents.
type contender struct {
	name  string
	kind  kind
	start func(w *world) (*operator, error)
	limit time.Duration // of one turn; none if zero
	every int           // so many rounds it has a turn; each if zero
}

// slowly bounds the turns of contenders that are so slow, or have so much to do, that they need not finish.
func slowly(limit time.Duration, contenders ...contender) []contender {
	limited := slices.Clone(contenders)
	for i := range limited {
		limited[i].limit = limit
	}
	return limited
}

// rarely gives contenders a turn in every third round, which is enough to tell who is far behind, or far ahead.
func rarely(contenders []contender) []contender {
	rare := slices.Clone(contenders)
	for i := range rare {
		rare[i].every = 3
	}
	return rare
}

// asInstalled is the operator of a revision, with the controllers that run by default.
func asInstalled(rev *revision) contender {
	return contender{name: rev.name, kind: machines, start: func(w *world) (*operator, error) { return w.startManager(rev.name) }}
}

// fromBaseline is a contender of the package baseline, which this program runs as a process of its own.
func fromBaseline(name string, args ...string) contender {
	return contender{name: name, kind: machines, start: func(w *world) (*operator, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		port, err := cluster.FreePort()
		if err != nil {
			return nil, err
		}
		o := &operator{metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", port)}
		o.Process, err = w.run(name, self, append([]string{"contend", w.key, strconv.Itoa(port), name}, args...)...)
		return o, err
	}}
}

// replicaSetController is Kubernetes' own, alone in its process and without a limit on its requests.
func replicaSetController() contender {
	return contender{name: "replicaset", kind: replicaSets, start: func(w *world) (*operator, error) {
		args := append(cluster.ControllerManagerArgs(), "--controllers=replicaset-controller", "--kube-api-qps=100000", "--kube-api-burst=100000")
		process, err := w.run("replicaset", w.plane.Programs.Path("kube-controller-manager"), args...)
		return &operator{Process: process}, err
	}}
}

// withoutReplicaSets are the usual controllers of a control plane, but for those of ReplicaSets.
func withoutReplicaSets() []string {
	return slices.DeleteFunc(slices.Clone(cluster.DefaultControllers), func(name string) bool {
		return name == "replicaset-controller" || name == "deployment-controller"
	})
}

// A size is how many Machines there are, with how many switches each.
type size struct {
	machines, switches int
}

func (s size) String() string { return fmt.Sprintf("%dx%d", s.machines, s.switches) }
func (s size) total() int     { return s.machines * s.switches }

// convergence measures how fast Machines get their switches.
func convergence(ctx context.Context, b *bench) error {
	ours, floor := asInstalled(b.ours), fromBaseline("bare+informer", b.concurrency)
	naive, kubernetes, sample := fromBaseline("tutorial"), replicaSetController(), fromBaseline("sample")
	races := []race{
		{b, "convergence", size{100, 10}, 5, append(slowly(2*time.Second, kubernetes, sample, naive), ours, floor, fromBaseline("bare", b.concurrency))},
		{b, "convergence", size{1_000, 10}, 20, append(rarely(slowly(time.Second, kubernetes, naive)), ours, floor)},
		{b, "convergence", size{100, 1_000}, 8, slowly(2*time.Second, ours, floor)},
	}
	switch {
	case b.base != nil:
		both := slowly(2*time.Second, ours, floor, asInstalled(b.base))
		races = []race{{b, "convergence", size{1_000, 10}, 20, both}, {b, "convergence", size{100, 1_000}, 12, both}}
	case b.quick:
		races = nil
	}
	for _, r := range races {
		if err := r.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// largest measures the same of as many Machines as there are. What the operator has yet to make then, endLargest has it make.
func largest(ctx context.Context, b *bench) error {
	ours, floor := asInstalled(b.ours), fromBaseline("bare+informer", b.concurrency)
	r := race{b, "convergence", b.large, 16, append(slowly(2*time.Second, ours, floor), rarely(slowly(2*time.Second, replicaSetController(), fromBaseline("tutorial")))...)}
	if b.quick {
		r.turns = 10
	}
	return r.run(ctx)
}

// endLargest has the operator make what is left of the largest race, or as much as it can in its time, and records what it
// has asked for in all.
func (b *bench) endLargest(ctx context.Context, limit time.Duration) error {
	if b.finalist == nil {
		return nil
	}
	b.say("%s: bringing them to rest", b.large)
	r := &race{bench: b, experiment: "convergence", size: b.large}
	err := errors.Join(r.finish(ctx, b.finalist, limit), b.finalist.world.stop())
	b.finalist = nil
	return err
}

// A race is one size of the experiment on convergence. All contenders have a world of their own with so many parents in
// it, and make children there by turns: who is not at work is stopped. Each does an equal part of the work in each of its
// turns, or as much as it can in its time.
type race struct {
	*bench
	experiment string // what is recorded is of
	size       size
	turns      int // of each contender
	contenders []contender
}

// A runner is a contender in its world.
type runner struct {
	contender
	world   *world
	process *operator
	before  map[string]float64 // calls when it was started
	done    int                // children
	ended   bool               // all is as it should be
}

// run measures the contenders.
func (r *race) run(ctx context.Context) (err error) {
	runners, err := r.prepareAll(ctx)
	defer func() { err = errors.Join(err, r.stop(runners)) }()
	if err != nil {
		return err
	}
	if err := awaitQuiet(ctx, worldsOf(runners)...); err != nil {
		return err
	}
	for round := range r.turns {
		for _, runner := range runners {
			if runner.ended || runner.every > 0 && (round+1)%runner.every != 0 {
				continue
			}
			if err := r.turn(ctx, runner, round+1); err != nil {
				return fmt.Errorf("measure %s: %w", runner.name, err)
			}
		}
		slices.Reverse(runners) // A B, B A, A B, …
	}
	for _, runner := range runners {
		if runner == r.finalist {
			continue
		}
		if err := r.sum(ctx, runner); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the worlds, but for the one that others can use.
func (r *race) stop(runners []*runner) (err error) {
	for _, runner := range runners {
		if runner != r.finalist {
			err = errors.Join(err, runner.world.stop())
		}
	}
	return err
}

// prepareAll returns the contenders in their worlds, also if some could not be prepared. Only the first one of a kind and
// revision has its parents created: the worlds of the others begin as copies of its.
func (r *race) prepareAll(ctx context.Context) ([]*runner, error) {
	r.say("%s: preparing %d parents for each of %d contenders", r.size, r.size.machines, len(r.contenders))
	runners := make([]*runner, len(r.contenders))
	origins := map[string]*runner{}
	for i, c := range r.contenders {
		origin := r.revisionOf(c).name + c.kind.children
		if origins[origin] != nil {
			continue
		}
		var err error
		if runners[i], err = r.prepare(ctx, c, ""); err != nil {
			return present(runners), err
		}
		origins[origin] = runners[i]
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for i, c := range r.contenders {
		if runners[i] == nil {
			origin := origins[r.revisionOf(c).name+c.kind.children]
			group.Go(func() (err error) {
				runners[i], err = r.prepare(ctx, c, origin.world.copied)
				return err
			})
		}
	}
	err := group.Wait()
	return present(runners), err
}

// present are the runners that there are.
func present(runners []*runner) []*runner {
	return slices.DeleteFunc(runners, func(r *runner) bool { return r == nil })
}

// revisionOf is what the operator is that has the contender's name, and what is installed beside those who are none.
func (r *race) revisionOf(c contender) *revision {
	if r.base != nil && c.name == r.base.name {
		return r.base
	}
	return r.ours
}

// prepare makes the world of a contender. It begins with a copy of another one's state, or is populated.
func (r *race) prepare(ctx context.Context, c contender, state string) (*runner, error) {
	w, err := newWorld(ctx, r.programs, r.revisionOf(c), worldOptions{controllers: withoutReplicaSets(), state: state})
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", c.name, err)
	}
	if state == "" {
		err = errors.Join(w.allowUpdates(ctx), w.populate(ctx, c.kind, r.size.machines, r.size.switches), w.copyState(ctx))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare %s: %w", c.name, err), w.stop())
	}
	runner := &runner{contender: c, world: w}
	if r.size == r.large && c.name == r.ours.name {
		r.finalist = runner
	}
	return runner, nil
}

func worldsOf(runners []*runner) (worlds []*world) {
	for _, r := range runners {
		worlds = append(worlds, r.world)
	}
	return worlds
}

// awaitQuiet waits until nothing goes on in some worlds: API servers fill the caches of their versions for a while.
func awaitQuiet(ctx context.Context, worlds ...*world) error {
	const every, most = 500 * time.Millisecond, 0.05 // seconds of a processor
	used := func() (sum float64, err error) {
		for _, w := range worlds {
			for _, p := range w.all() {
				seconds, err := cpuSeconds(p)
				if err != nil {
					return 0, err
				}
				sum += seconds
			}
		}
		return sum, nil
	}
	for before := math.Inf(-1); ; {
		now, err := used()
		if err != nil || now-before <= most*float64(len(worlds)) {
			return err
		}
		before = now
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

// turn lets a runner work for a round.
func (r *race) turn(ctx context.Context, runner *runner, round int) error {
	if err := runner.resume(ctx); err != nil {
		return err
	}
	record := Record{Experiment: r.experiment, Case: r.size.String(), Contender: runner.name, Round: round, Values: map[string]float64{}}
	from, start := runner.done, time.Now()
	err := runner.spending(record.Values, func() error {
		return r.await(ctx, runner, min(r.size.total(), r.size.total()*round/r.turns))
	})
	if err != nil {
		return err
	}
	record.Values["seconds"], record.Values["children"] = time.Since(start).Seconds(), float64(runner.done-from)
	r.say("%s: round %d: %s: %d children in %.1fs, %.0f/s", r.size, round, runner.name, runner.done-from,
		record.Values["seconds"], record.Values["children"]/record.Values["seconds"])
	if err := r.record(record); err != nil || runner.ended {
		return err
	}
	return runner.process.Signal(syscall.SIGSTOP)
}

// finish has a runner make what is left.
func (r *race) finish(ctx context.Context, runner *runner, limit time.Duration) error {
	if err := runner.resume(ctx); err != nil {
		return err
	}
	runner.limit = limit
	if err := r.await(ctx, runner, r.size.total()); err != nil {
		return err
	}
	// To count what there is takes a while, in which it would go on.
	if err := runner.process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return r.sum(ctx, runner)
}

// await waits until a runner has made so many children, or has had its time. With the last child, all has to be as it
// should be. It asks when nine tenths of what is missing must be there: to count them takes the API server the longer the
// more there are.
func (r *race) await(ctx context.Context, runner *runner, children int) (err error) {
	from, start := runner.done, time.Now()
	for wait := 50 * time.Millisecond; runner.done < children; {
		if runner.limit > 0 {
			wait = min(wait, runner.limit-time.Since(start))
		}
		if wait <= 0 {
			break
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		if runner.done, err = runner.world.count(ctx, runner.kind); err != nil {
			return err
		}
		elapsed := time.Since(start)
		each := elapsed / time.Duration(max(runner.done-from, 1))
		wait = max(min(each*time.Duration(children-runner.done)*9/10, 4*elapsed), 5*time.Millisecond)
	}
	if runner.done < r.size.total() {
		return nil
	}
	runner.ended = true
	return runner.world.awaitConverged(ctx, runner.kind)
}

// resume starts a runner, or lets it go on. A start is over with the first child.
func (r *runner) resume(ctx context.Context) (err error) {
	if r.process != nil {
		if err := r.process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		r.done, err = r.world.count(ctx, r.kind)
		return err
	}
	if r.before, err = r.world.calls(ctx); err != nil {
		return err
	}
	if r.process, err = r.start(r.world); err != nil {
		return err
	}
	return cluster.Await(ctx, []*cluster.Process{r.process.Process}, func(ctx context.Context) error {
		if r.done, err = r.world.count(ctx, r.kind); err == nil && r.done == 0 {
			err = errors.New("it makes nothing")
		}
		return err
	})
}

// cpu is what the processes of a runner's world have used.
func (r *runner) cpu() (map[string]float64, error) {
	used := map[string]float64{}
	for _, p := range r.world.all() {
		seconds, err := cpuSeconds(p)
		if err != nil {
			return nil, err
		}
		used[r.role(p)] = seconds
	}
	return used, nil
}

// role is what a process of the runner's world is called in records.
func (r *runner) role(p *cluster.Process) string {
	if p == r.process.Process {
		return "contender"
	}
	return p.Name()
}

// sum records what can only be said of the whole.
func (r *race) sum(ctx context.Context, runner *runner) error {
	missing, _, err := runner.world.missing(ctx, runner.kind)
	if err != nil {
		return err
	}
	record := Record{Experiment: r.experiment, Case: r.size.String(), Contender: runner.name, Values: map[string]float64{
		"children": float64(runner.done), "converged": float64(r.size.machines - missing.Len()), "ended": 0,
	}}
	if runner.ended {
		record.Values["ended"] = 1
	}
	for _, p := range runner.world.all() {
		_, peak, err := memory(p)
		if err != nil {
			return err
		}
		record.Values["peak_"+runner.role(p)+"_bytes"] = peak
	}
	after, err := runner.world.calls(ctx)
	if err != nil {
		return err
	}
	for name, n := range after {
		if n -= runner.before[name]; n > 0 && concerns(name) {
			record.Values["calls "+name] = n
		}
	}
	if runner.process.metrics != "" {
		if err := runner.process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		if record.Values["requests"], err = runner.process.requests(ctx); err != nil {
			return err
		}
	}
	return r.record(record)
}

// concerns reports whether a call is about what the contenders work on.
func concerns(call string) bool {
	return slices.ContainsFunc([]string{"machines", "switches", "replicasets", "pods", "events"}, func(resource string) bool {
		return strings.Contains(call, " "+resource)
	})
}
