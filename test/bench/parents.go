// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// A size is a number of Machines with a number of Switches each.
type size struct {
	machines, switches int
}

// String returns the size in the format of the records, such as 1000x10.
func (s size) String() string { return fmt.Sprintf("%dx%d", s.machines, s.switches) }
func (s size) total() int     { return s.machines * s.switches }

// parseSize is the inverse of String. It panics if text is not a size.
func parseSize(text string) (s size) {
	if _, err := fmt.Sscanf(text, "%dx%d", &s.machines, &s.switches); err != nil {
		panic(fmt.Sprintf("%q is not a size: %v", text, err))
	}
	return s
}

func nameOf(i int) string { return fmt.Sprintf("machine-%05d", i) }

func newMachine(name string, switches int) *v1beta1.Machine {
	m := &v1beta1.Machine{Spec: v1beta1.MachineSpec{Switches: v1beta1.SwitchesSpec{Count: int32(switches)}}}
	m.Namespace, m.Name = metav1.NamespaceDefault, name
	return m
}

// populate creates Machines without Switches.
func (e *environment) populate(ctx context.Context, s size) error {
	return e.createAll(ctx, s.machines, func(name string) client.Object { return newMachine(name, s.switches) })
}

// createAll creates n objects.
func (e *environment) createAll(ctx context.Context, n int, object func(name string) client.Object) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error { return e.admin.Create(ctx, object(nameOf(i))) })
	}
	return group.Wait()
}

// inTurns measures each revision in each round. Each revision has its own environment. Before the first round, inTurns
// prepares all environments and waits until they have nothing left to do.
func (b *bench) inTurns(
	ctx context.Context, rounds int, prepare func(*environment) error, measure func(e *environment, round int) error,
) (err error) {
	var environments []*environment
	defer func() {
		for _, e := range environments {
			err = errors.Join(err, e.stop())
		}
	}()
	for _, rev := range b.revisions {
		e, err := newEnvironment(ctx, b.programs, rev)
		if err != nil {
			return err
		}
		environments = append(environments, e)
		if err := prepare(e); err != nil {
			return err
		}
	}
	if err := awaitQuiet(ctx, environments...); err != nil {
		return err
	}
	for round := 1; round <= rounds; round++ {
		for _, e := range environments {
			if err := measure(e, round); err != nil {
				return err
			}
		}
		slices.Reverse(environments) // the order is A B, B A, A B, …
	}
	return nil
}

// count returns the number of Switches. It lists one Switch. The response contains the number of remaining Switches.
func (e *environment) count(ctx context.Context) (int, error) {
	const path = "/apis/useless.container.training/v1beta1/switches"
	data, err := e.raw.Get().AbsPath(path).Param("limit", "1").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	list := &metav1.PartialObjectMetadataList{}
	if err := json.Unmarshal(data, list); err != nil {
		return 0, err
	}
	return len(list.Items) + int(ptr.Deref(list.RemainingItemCount, 0)), nil
}

// awaitConverged waits until all Switches exist and the statuses of all Machines show them.
func (e *environment) awaitConverged(ctx context.Context, s size) error {
	for {
		n, err := e.count(ctx)
		if err != nil {
			return err
		}
		if n >= s.total() {
			if converged, err := e.allConverged(ctx); err != nil || converged {
				return err
			}
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func (e *environment) allConverged(ctx context.Context) (bool, error) {
	list := &v1beta1.MachineList{}
	err := e.admin.List(ctx, list)
	return !slices.ContainsFunc(list.Items, func(m v1beta1.Machine) bool {
		return m.Status.Switches.Total < m.Spec.Switches.Count
	}), err
}
