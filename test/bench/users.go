// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/versioned"
	"container.training/useless/test/internal/invariants"
)

// patience is the longest time to wait for the next event.
const patience = time.Minute

// window is the lowest number of samples for a 99th percentile.
const window = 1_000

// flipDelay is the delay of all Machines, and also the interval between two flips of a Machine.
const flipDelay = time.Duration(v1beta1.DefaultFlipSeconds) * time.Second

// A flip is an event: a subject has turned a Switch down. It is due when flipDelay has passed since a user sent the
// request. The interval has passed then, too: users choose only Machines at rest.
type flip struct {
	invariants.Flip

	heard time.Time // when the watch event arrived
}

func (f flip) late() time.Duration { return f.heard.Sub(f.Due) }

// addLateness adds percentiles of the lateness to the values.
func addLateness(values map[string]float64, flips []flip) {
	late := make([]float64, len(flips))
	for i, f := range flips {
		late[i] = f.late().Seconds()
	}
	addPercentiles(values, "lateness", late)
}

// addPercentiles adds the number of samples and their percentiles to the values, if there are samples. It adds no p99
// if there are too few samples.
func addPercentiles(values map[string]float64, name string, seconds []float64) {
	if len(seconds) == 0 {
		return
	}
	values[name+"_samples"] = float64(len(seconds))
	values[name+"_p50_seconds"] = percentile(seconds, 50)
	values[name+"_max_seconds"] = percentile(seconds, 100)
	if len(seconds) >= window {
		values[name+"_p99_seconds"] = percentile(seconds, 99)
	}
}

// A lag is the time from a change of a Switch's position until the status of its Machine is correct.
type lag struct {
	from   time.Time // when the watch event of the Switch arrived
	length time.Duration
}

// statuses compares the status of each Machine with the position of its only Switch.
type statuses struct {
	machines map[string]counted
	open     int // number of changes that no status counts yet
	lags     []lag
}

// counted is the state of a Machine in the watch events.
type counted struct {
	up, inStatus bool        // position of the Switch: the actual one, and the one in the Machine's status
	open         []time.Time // changes of the position that no status counts yet
}

// hear compares a Machine's states after a watch event.
func (s *statuses) hear(machine string, at time.Time, change func(*counted)) {
	m := s.machines[machine]
	before := m.up
	change(&m)
	if m.up != before {
		m.open = append(m.open, at)
		s.open++
	}
	if m.up == m.inStatus {
		for _, from := range m.open {
			s.lags = append(s.lags, lag{from, at.Sub(from)})
		}
		s.open -= len(m.open)
		m.open = nil
	}
	s.machines[machine] = m
}

// poisson returns the times of independent random events. The rate may change with the time. The same seed always
// gives the same times.
func poisson(seed uint64, perSecond func(time.Duration) float64) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		random := rand.New(rand.NewPCG(seed, seed))
		for at := time.Duration(0); yield(at); {
			at += time.Duration(random.ExpFloat64() / perSecond(at) * float64(time.Second))
		}
	}
}

// users turn Switches up, and observe the flips. All Machines must have one Switch.
type users struct {
	env     *environment
	resting chan string        // names of Machines whose Switches are all down
	sent    sync.Map           // times of the latest requests, by the names of the Machines
	onFlip  func(flips []flip) // called after each flip; may be nil
	seed    uint64             // seed of the times of the requests

	late    []float64 // how late each request of a user started, in seconds
	turned  int       // number of Switches that were turned up
	down    int       // number of Switches that were turned down again
	skipped int       // number of times at which no Machine was at rest
	checker *invariants.Checker
	statuses
}

// newUsers returns the users of an environment with Machines at rest.
func newUsers(e *environment, s size) *users {
	u := &users{env: e, resting: make(chan string, s.machines), checker: invariants.NewChecker(0)}
	u.machines = map[string]counted{}
	for i := range s.machines {
		u.resting <- nameOf(i)
	}
	return u
}

// run turns Switches up at a constant rate; see follow.
func (u *users) run(ctx context.Context, until <-chan struct{}, perSecond float64) ([]flip, error) {
	return u.follow(ctx, until, func(time.Duration) float64 { return perSecond })
}

// follow turns Switches up at random times. When until is closed, it waits until all Switches are down again and all
// statuses are correct. It returns all flips. The method addFaults returns the violations.
func (u *users) follow(
	ctx context.Context, until <-chan struct{}, perSecond func(time.Duration) float64,
) (flips []flip, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	machines, switches, err := u.watch(ctx)
	if err != nil {
		return nil, err
	}
	turning := make(chan error, 1)
	go func() { turning <- u.turnAll(ctx, until, poisson(u.seed, perSecond)) }()
	for turned := -1; u.down != turned || u.open > 0; { // -1 until the users have finished
		var event watch.Event
		select {
		case event = <-machines:
		case event = <-switches:
		case err := <-turning:
			if err != nil {
				return nil, fmt.Errorf("turn Switches up: %w", err)
			}
			turned = u.turned
			continue
		case <-time.After(patience):
			return nil, fmt.Errorf("no Switch and no Machine changed for %s", patience)
		}
		f, ok, err := u.hear(event, time.Now())
		if err != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		if ok {
			flips = append(flips, f)
			if u.onFlip != nil {
				u.onFlip(flips)
			}
		}
	}
	return flips, nil
}

// hear takes a watch event. It returns true if the event is a flip. Without an object, the watch has ended.
func (u *users) hear(event watch.Event, at time.Time) (f flip, ok bool, err error) {
	switch object := event.Object.(type) {
	case *v1beta1.Machine:
		u.statuses.hear(object.Name, at, func(m *counted) { m.inStatus = object.Status.Switches.Up > 0 })
	case *v1beta1.Switch:
		machine := object.Labels[v1beta1.MachineLabel]
		u.statuses.hear(machine, at, func(m *counted) { m.up = object.Spec.Position == v1beta1.PositionUp })
		f.heard = at
		if f.Flip, ok = u.checker.Add(invariants.Revision{Type: event.Type, Object: object}); !ok {
			return flip{}, false, nil
		}
		if sent, ok := u.sent.Load(machine); ok {
			f.Due = sent.(time.Time).Add(flipDelay)
		}
		if f.Violation != invariants.Doubled {
			u.down++
			u.resting <- machine
		}
	default:
		return flip{}, false, fmt.Errorf("the watch ended: %v", event.Object)
	}
	return f, ok, nil
}

// turnAll turns one Switch up at each of the times. The Machine that has been at rest for the longest time comes first.
// A request does not wait for earlier requests, so a slow API server does not reduce the load.
func (u *users) turnAll(ctx context.Context, until <-chan struct{}, times iter.Seq[time.Duration]) error {
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for at := range times {
		due := start.Add(at)
		select {
		case <-until:
			return group.Wait()
		case <-ctx.Done():
			return errors.Join(group.Wait(), ctx.Err())
		case <-time.After(time.Until(due)):
		}
		u.late = append(u.late, time.Since(due).Seconds())
		select {
		case machine := <-u.resting:
			u.turned++
			group.Go(func() error { return u.turnUp(ctx, machine) })
		default:
			u.skipped++
		}
	}
	return group.Wait()
}

// turnUp turns the Switch of a Machine up, as kubectl patch does.
func (u *users) turnUp(ctx context.Context, machine string) error {
	sw := &v1beta1.Switch{}
	sw.Namespace, sw.Name = metav1.NamespaceDefault, machine+"-0"
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"position":"up"}}`))
	u.sent.Store(machine, time.Now())
	return u.env.admin.Patch(ctx, sw, patch)
}

// watch returns the events of all Machines and Switches from now on, until the context ends. The checker gets their
// state before these events.
func (u *users) watch(ctx context.Context) (machines, switches <-chan watch.Event, err error) {
	clientset, err := versioned.NewForConfig(u.env.plane.Config)
	if err != nil {
		return nil, nil, err
	}
	group := clientset.UselessV1beta1()
	machineList, err := group.Machines(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	switchList, err := group.Switches(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for i := range machineList.Items {
		u.checker.Add(invariants.Revision{Type: watch.Added, Object: &machineList.Items[i]})
	}
	for i := range switchList.Items {
		u.checker.Add(invariants.Revision{Type: watch.Added, Object: &switchList.Items[i]})
	}
	machines, err = watchFrom(ctx, machineList.ResourceVersion, group.Machines(metav1.NamespaceDefault).Watch)
	if err != nil {
		return nil, nil, err
	}
	switches, err = watchFrom(ctx, switchList.ResourceVersion, group.Switches(metav1.NamespaceDefault).Watch)
	return machines, switches, err
}

// watchFrom returns the events after a resourceVersion. If the API server considers a client slow, it may end the
// watch. A RetryWatcher then continues.
func watchFrom(ctx context.Context, version string, start cache.WatchFuncWithContext) (<-chan watch.Event, error) {
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{WatchFuncWithContext: start})
	if err != nil {
		return nil, err
	}
	return watcher.ResultChan(), nil
}

// addFaults adds the number of wrong flips of each kind to the values. If the checker has found a violation, it returns
// an error.
func (u *users) addFaults(values map[string]float64, flips []flip) error {
	for _, fault := range []string{invariants.Early, invariants.Crowded, invariants.Doubled} {
		values[fault] = 0
	}
	for _, f := range flips {
		if f.Violation != "" {
			values[f.Violation]++
		}
	}
	if faults := u.checker.Violations(); len(faults) > 0 {
		return fmt.Errorf("%d violations, the first one: %w", len(faults), faults[0])
	}
	return nil
}
