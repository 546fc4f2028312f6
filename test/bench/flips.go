// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
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

// patience is the longest time to wait for the next flip.
const patience = time.Minute

// A flip is an event: the operator has turned a Switch down.
type flip struct {
	invariants.Flip

	heard time.Time // when the watch event arrived
}

// addLateness adds percentiles of the lateness to the values.
func addLateness(values map[string]float64, flips []flip) {
	late := make([]float64, len(flips))
	for i, f := range flips {
		late[i] = f.heard.Sub(f.Due).Seconds()
	}
	values["lateness_p50_seconds"] = percentile(late, 50)
	values["lateness_p99_seconds"] = percentile(late, 99)
	values["lateness_max_seconds"] = percentile(late, 100)
}

// poisson returns the times of independent random events. The same seed always gives the same times.
func poisson(seed uint64, perSecond float64) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		random := rand.New(rand.NewPCG(seed, seed))
		for at := 0.; yield(time.Duration(at * float64(time.Second))); {
			at += random.ExpFloat64() / perSecond
		}
	}
}

// users turn Switches up, and observe the flips.
type users struct {
	env     *environment
	size    size
	resting chan string // names of Machines whose Switches are all down

	late    []float64 // how late each request of a user started, in seconds
	turned  int       // number of Switches that were turned up
	skipped int       // number of times at which no Machine was at rest
	checker *invariants.Checker
}

// newUsers returns the users of an environment with Machines at rest.
func newUsers(e *environment, s size) *users {
	u := &users{env: e, size: s, resting: make(chan string, s.machines), checker: invariants.NewChecker(0)}
	for i := range s.machines {
		u.resting <- nameOf(i)
	}
	return u
}

// run turns Switches up at random times. When until is closed, it waits until all Switches are down again, and returns
// all flips. The method addFaults returns the violations.
func (u *users) run(ctx context.Context, until <-chan struct{}, perSecond float64) (flips []flip, err error) {
	ctx, cancel := context.WithCancel(ctx)
	heard, err := u.watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	flips, err = u.turnAndHear(ctx, heard, until, perSecond)
	cancel()
	for range heard { // when heard is closed, no other goroutine uses the checker
		continue
	}
	return flips, err
}

// turnAndHear turns Switches up. When until is closed, it waits until all Switches are down again, and returns the
// flips from heard.
func (u *users) turnAndHear(
	ctx context.Context, heard <-chan flip, until <-chan struct{}, perSecond float64,
) (flips []flip, err error) {
	turning := make(chan error, 1)
	go func() { turning <- u.turnAll(ctx, until, poisson(1, perSecond)) }()
	for turned := -1; len(flips) != turned; { // -1 until the users have finished
		select {
		case f, ok := <-heard:
			if !ok {
				return nil, errors.Join(errors.New("the watch of Switches ended"), ctx.Err())
			}
			if flips = append(flips, f); f.Violation != invariants.Doubled {
				u.resting <- f.Machine
			}
		case err := <-turning:
			if err != nil {
				return nil, fmt.Errorf("turn Switches up: %w", err)
			}
			turned = u.turned
		case <-time.After(patience):
			return nil, fmt.Errorf("no Switch was turned down for %s", patience)
		}
	}
	return flips, nil
}

// turnAll turns one Switch up at each of the times. The Machine that has been at rest for the longest time comes first.
// A request does not wait for earlier requests, so a slow API server does not reduce the load.
func (u *users) turnAll(ctx context.Context, until <-chan struct{}, times iter.Seq[time.Duration]) error {
	start := time.Now()
	random := rand.New(rand.NewPCG(3, 4))
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
			name := fmt.Sprintf("%s-%d", machine, random.IntN(u.size.switches))
			group.Go(func() error { return u.turnUp(ctx, name) })
		default:
			u.skipped++
		}
	}
	return group.Wait()
}

// turnUp turns a Switch up, as kubectl patch does.
func (u *users) turnUp(ctx context.Context, name string) error {
	sw := &v1beta1.Switch{}
	sw.Namespace, sw.Name = metav1.NamespaceDefault, name
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"position":"up"}}`))
	return u.env.admin.Patch(ctx, sw, patch)
}

// watch returns all flips from now on. The channel is closed when the context or the watch ends.
func (u *users) watch(ctx context.Context) (<-chan flip, error) {
	clientset, err := versioned.NewForConfig(u.env.plane.Config)
	if err != nil {
		return nil, err
	}
	group := clientset.UselessV1beta1()
	machines, err := group.Machines(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	list, err := group.Switches(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range machines.Items {
		u.checker.Add(invariants.Revision{Type: watch.Added, Object: &machines.Items[i]})
	}
	for i := range list.Items {
		u.checker.Add(invariants.Revision{Type: watch.Added, Object: &list.Items[i]})
	}
	// If the API server considers a client slow, it may end the watch. A RetryWatcher then continues.
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion,
		&cache.ListWatch{WatchFuncWithContext: group.Switches(metav1.NamespaceDefault).Watch})
	if err != nil {
		return nil, err
	}
	flips := make(chan flip, len(list.Items))
	go func() {
		defer close(flips)
		defer watcher.Stop()
		u.check(ctx, watcher.ResultChan(), flips)
	}()
	return flips, nil
}

// check sends the flips among the events until the context or the watch ends.
func (u *users) check(ctx context.Context, events <-chan watch.Event, flips chan<- flip) {
	for event := range events {
		sw, ok := event.Object.(*v1beta1.Switch)
		if !ok {
			return // the watch has failed
		}
		if f, ok := u.checker.Add(invariants.Revision{Type: event.Type, Object: sw}); ok {
			select {
			case flips <- flip{f, time.Now()}:
			case <-ctx.Done():
				return
			}
		}
	}
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
