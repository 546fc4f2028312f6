// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"container.training/useless/hack/cluster"
	"container.training/useless/test/bench/baseline"
)

// A subject is a program that creates Switches for Machines.
type subject struct {
	name  string
	rev   *revision // revision of the environment of the subject
	start func(e *environment) (*process, error)
}

// asInstalled returns the operator of a revision with its default controllers.
func asInstalled(rev *revision) subject {
	return subject{name: rev.name, rev: rev, start: func(e *environment) (*process, error) {
		return e.startManager(rev.name)
	}}
}

// Names of subjects.
const (
	minimalClient       = "minimal client"
	creator             = "creator"
	replicaSetAlgorithm = "replicaset algorithm"
)

// clients are the subjects that this program contains. It runs each client as a separate process; see runClient.
var clients = map[string]func(context.Context, *rest.Config) error{
	minimalClient: baseline.Run, creator: baseline.Create, replicaSetAlgorithm: baseline.RunReplicaSetAlgorithm,
}

// client returns the subject of the function clients[name].
func (b *bench) client(name string) subject {
	return subject{name: name, rev: b.ours, start: func(e *environment) (*process, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return e.run(name, self, name, e.key)
	}}
}

// allowUpdates lets the operator's ServiceAccount read and update single Machines. The operator itself only lists and
// patches them.
func (e *environment) allowUpdates(ctx context.Context) error {
	return e.admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Namespace: "useless-system", Name: "useless-controller-manager"},
		},
	})
}

// compared lists the sizes of races between two revisions. At the speed in docs/performance.md, a subject needs about
// 150 turns.
var compared = []size{{6_000, 10}, {100, 1_000}}

// convergence measures how fast Machines get their Switches. In each round, each subject has one turn; see race.
//
// Values of a round:
//   - seconds: the length of the turn
//   - children: the number of Switches that the subject has created in the turn
//   - cpu_subject_seconds, cpu_apiserver_seconds, cpu_etcd_seconds: the CPU time of the subject, of its API server and
//     of its etcd
//
// Values of all rounds:
//   - children: the number of Switches that the subject has created
//   - ended: 1 if all Switches exist
//   - peak_subject_bytes: the maximum resident memory of the subject
//   - requests: the number of requests; only for an operator
func convergence(ctx context.Context, b *bench) error {
	two := []subject{asInstalled(b.ours), b.client(minimalClient)}
	four := append(two[:2:2], b.client(creator), b.client(replicaSetAlgorithm))
	races := []race{
		{b, size{1_000, 10}, time.Second, 20, four},
		{b, size{10_000, 10}, 2 * time.Second, 10, two},
		{b, size{100, 1_000}, 2 * time.Second, 10, two},
	}
	switch {
	case b.base != nil:
		rounds := 150
		if b.quick {
			rounds = 40
		}
		races = nil
		for _, s := range compared {
			both := []subject{asInstalled(b.ours), asInstalled(b.base)}
			races = append(races, race{b, s, time.Second, rounds, both})
		}
	case b.quick:
		races = races[:1]
		races[0].turn, races[0].rounds = time.Second/2, 6
	}
	for _, r := range races {
		if err := r.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// A race compares subjects. Each subject has its own environment with the same number of Machines. The subjects take
// turns: one runs for a short time while the others are suspended. So other load on the computer affects all subjects.
type race struct {
	*bench

	size     size
	turn     time.Duration
	rounds   int
	subjects []subject
}

// A runner is a subject in its environment.
type runner struct {
	subject

	env     *environment
	process *process
	done    int  // number of existing Switches
	ended   bool // all Switches exist
}

// run measures the subjects until all have finished, or until the last round.
func (r *race) run(ctx context.Context) (err error) {
	runners, err := r.prepareAll(ctx)
	defer func() {
		for _, runner := range runners {
			err = errors.Join(err, runner.env.stop())
		}
	}()
	if err != nil {
		return err
	}
	var environments []*environment
	for _, runner := range runners {
		environments = append(environments, runner.env)
	}
	if err := awaitQuiet(ctx, environments...); err != nil {
		return err
	}
	works := func(r *runner) bool { return !r.ended }
	for round := 1; round <= r.rounds && slices.ContainsFunc(runners, works); round++ {
		for _, runner := range runners {
			if err := r.runTurn(ctx, runner, round); err != nil {
				return fmt.Errorf("measure %s: %w", runner.name, err)
			}
		}
		slices.Reverse(runners) // the order is A B, B A, A B, …
	}
	for _, runner := range runners {
		if err := r.recordSum(ctx, runner); err != nil {
			return err
		}
	}
	return nil
}

// prepareAll creates the environments, two at a time. After an error, it returns the runners that exist.
func (r *race) prepareAll(ctx context.Context) ([]*runner, error) {
	r.log("%s: preparing %d Machines for each of %d subjects", r.size, r.size.machines, len(r.subjects))
	runners := make([]*runner, len(r.subjects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for i, s := range r.subjects {
		group.Go(func() error {
			e, err := newEnvironment(ctx, r.programs, s.rev)
			if err != nil {
				return fmt.Errorf("prepare %s: %w", s.name, err)
			}
			runners[i] = &runner{subject: s, env: e}
			if s.name == replicaSetAlgorithm {
				err = e.allowUpdates(ctx)
			}
			return errors.Join(err, e.populate(ctx, r.size))
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(runners, func(r *runner) bool { return r == nil }), err
}

// runTurn lets a subject run for a turn, and records the values. A subject that finishes during the turn is idle for
// the rest of the turn. In this case, runTurn records nothing.
func (r *race) runTurn(ctx context.Context, runner *runner, round int) error {
	if runner.ended {
		return nil
	}
	if err := runner.resume(ctx); err != nil {
		return err
	}
	values, err := runner.measure(ctx, r.turn)
	if err != nil {
		return err
	}
	if runner.done >= r.size.total() {
		runner.ended = true
		if runner.name == creator { // it writes no status
			return nil
		}
		return runner.env.awaitConverged(ctx, r.size)
	}
	r.log("%s: round %d: %s: %.0f/s", r.size, round, runner.name, values["children"]/values["seconds"])
	record := Record{Case: r.size.String(), Subject: runner.name, Round: round, Values: values}
	return errors.Join(r.record(record), runner.process.Signal(syscall.SIGSTOP))
}

// measure returns the values of a turn.
func (r *runner) measure(ctx context.Context, turn time.Duration) (map[string]float64, error) {
	before, err := r.cpu()
	if err != nil {
		return nil, err
	}
	from, start := r.done, time.Now()
	if err := pause(ctx, turn); err != nil {
		return nil, err
	}
	if r.done, err = r.env.count(ctx); err != nil {
		return nil, err
	}
	seconds := time.Since(start).Seconds()
	values, err := r.cpu()
	if err != nil {
		return nil, err
	}
	subtract(values, before)
	values["seconds"], values["children"] = seconds, float64(r.done-from)
	return values, nil
}

// cpu returns the CPU time that the subject, its API server and its etcd have used.
func (r *runner) cpu() (values map[string]float64, err error) {
	names := map[string]string{
		r.process.Name(): "cpu_subject_seconds", "kube-apiserver": "cpu_apiserver_seconds", "etcd": "cpu_etcd_seconds",
	}
	values = map[string]float64{}
	for _, p := range append(r.env.plane.Processes(), r.process.Process) {
		if name, ok := names[p.Name()]; ok {
			if values[name], err = cpuSeconds(p); err != nil {
				return nil, err
			}
		}
	}
	return values, nil
}

// resume resumes a suspended runner. In the first round, it starts the runner and waits for the first Switch.
func (r *runner) resume(ctx context.Context) (err error) {
	if r.process != nil {
		return r.process.Signal(syscall.SIGCONT)
	}
	if r.process, err = r.start(r.env); err != nil {
		return err
	}
	return cluster.Await(ctx, []*cluster.Process{r.process.Process}, func(ctx context.Context) error {
		if r.done, err = r.env.count(ctx); err == nil && r.done == 0 {
			err = errors.New("the subject has created no Switches")
		}
		return err
	})
}

// recordSum records the values of all rounds.
func (r *race) recordSum(ctx context.Context, runner *runner) error {
	peak, err := peakMemory(runner.process.Process)
	if err != nil {
		return err
	}
	values := map[string]float64{"children": float64(runner.done), "ended": 0, "peak_subject_bytes": peak}
	if runner.ended {
		values["ended"] = 1
	}
	if runner.process.metrics != "" { // a suspended process does not answer
		err = runner.process.Signal(syscall.SIGCONT)
		if err == nil {
			values["requests"], err = runner.process.metric(ctx, "rest_client_requests_total", nil)
		}
		if err != nil {
			return err
		}
	}
	return r.record(Record{Case: r.size.String(), Subject: runner.name, Values: values})
}
