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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/history"
)

// poisson are instants at which independent users act, so many per second on average. The seed makes them the same every
// time.
func poisson(seed uint64, perSecond float64) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		random := rand.New(rand.NewPCG(seed, seed))
		for at := 0.; yield(time.Duration(at * float64(time.Second))); {
			at += random.ExpFloat64() / perSecond
		}
	}
}

// evenly are instants that are equally far apart.
func evenly(apart time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for at := time.Duration(0); yield(at); {
			at += apart
		}
	}
}

// Users turn switches up.
type users struct {
	world   *world
	size    size
	resting chan string // Machines of which no switch is up

	late    []float64 // seconds by which each came late, which is the harness' fault
	turned  int       // switches
	skipped int       // instants at which no Machine was at rest
}

// usersOf are those of a world whose Machines are at rest.
func usersOf(w *world, s size) *users {
	u := &users{world: w, size: s, resting: make(chan string, s.machines)}
	for i := range s.machines {
		u.resting <- nameOf(i)
	}
	return u
}

// turn turns a switch up at each of the instants until no more are wanted, each of another Machine, and that in the order
// in which they came to rest. A user does not wait for those before: what the operator or the API server is slow at does
// not lessen what it is asked for.
func (u *users) turn(ctx context.Context, until <-chan struct{}, instants iter.Seq[time.Duration]) error {
	start := time.Now()
	random := rand.New(rand.NewPCG(3, 4))
	group, ctx := errgroup.WithContext(ctx)
	for at := range instants {
		instant := start.Add(at)
		select {
		case <-until:
			return group.Wait()
		case <-ctx.Done():
			return errors.Join(group.Wait(), ctx.Err())
		case <-time.After(time.Until(instant)):
		}
		u.late = append(u.late, time.Since(instant).Seconds())
		select {
		case machine := <-u.resting:
			u.turned++
			name := fmt.Sprintf("%s-%d", machine, random.IntN(u.size.switches))
			group.Go(func() error { return u.world.turnUp(ctx, name) })
		default:
			u.skipped++
		}
	}
	return group.Wait()
}

// turnUp turns a switch up, as kubectl patch does.
func (w *world) turnUp(ctx context.Context, name string) error {
	sw := &v1beta1.Switch{}
	sw.Namespace, sw.Name = metav1.NamespaceDefault, name
	return w.admin.Patch(ctx, sw, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"position":"up"}}`)))
}

// flips has the users turn switches up, and returns all flips when they are done and every switch is down again.
func (u *users) flips(ctx context.Context, until <-chan struct{}, instants iter.Seq[time.Duration]) ([]flip, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard, err := u.world.follow(ctx)
	if err != nil {
		return nil, err
	}
	turning := make(chan error, 1)
	go func() { turning <- u.turn(ctx, until, instants) }()
	var flips []flip
	for turned := -1; len(flips) != turned; { // -1 while nobody knows
		select {
		case f, ok := <-heard:
			if !ok {
				return nil, errors.Join(errWatchEnded, ctx.Err())
			}
			if flips = append(flips, f); f.Fault != history.Doubled {
				u.resting <- f.Machine
			}
		case err := <-turning:
			if err != nil {
				return nil, fmt.Errorf("turn switches up: %w", err)
			}
			turned = u.turned
		case <-time.After(patience):
			return nil, errNoFlip
		}
	}
	return flips, nil
}
