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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// A size is a number of parents, such as Machines, with a number of children each.
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

// A kind is a kind of objects with children: Machines have Switches, and ReplicaSets have Pods.
type kind struct {
	parent    func(name string, children int) client.Object
	parents   func() client.ObjectList
	children  string // path of the list of children
	converged func(client.Object) bool
}

var machines = kind{
	parent: func(name string, switches int) client.Object {
		m := &v1beta1.Machine{Spec: v1beta1.MachineSpec{Switches: v1beta1.SwitchesSpec{Count: int32(switches)}}}
		m.Namespace, m.Name = metav1.NamespaceDefault, name
		return m
	},
	parents:  func() client.ObjectList { return &v1beta1.MachineList{} },
	children: "/apis/useless.container.training/v1beta1/switches",
	converged: func(object client.Object) bool {
		m := object.(*v1beta1.Machine)
		return m.Status.Switches.Total >= m.Spec.Switches.Count
	},
}

var replicaSets = kind{
	parent: func(name string, pods int) client.Object {
		rs := &appsv1.ReplicaSet{}
		rs.Namespace, rs.Name = metav1.NamespaceDefault, name
		labels := map[string]string{"app": name}
		rs.Spec.Replicas, rs.Spec.Selector = new(int32(pods)), &metav1.LabelSelector{MatchLabels: labels}
		rs.Spec.Template.Labels = labels
		rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause"}}
		return rs
	},
	parents:  func() client.ObjectList { return &appsv1.ReplicaSetList{} },
	children: "/api/v1/namespaces/default/pods",
	converged: func(object client.Object) bool {
		rs := object.(*appsv1.ReplicaSet)
		return rs.Status.Replicas >= *rs.Spec.Replicas
	},
}

func nameOf(i int) string { return fmt.Sprintf("machine-%05d", i) }

// populate creates parents without children.
func (e *environment) populate(ctx context.Context, k kind, s size) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i := range s.machines {
		group.Go(func() error { return e.admin.Create(ctx, k.parent(nameOf(i), s.switches)) })
	}
	return group.Wait()
}

// atRest measures each revision in each round. Before the first round, the operator of the revision creates the
// Switches of all Machines.
func (b *bench) atRest(ctx context.Context, s size, rounds int, measure func(e *environment, round int) error) error {
	b.log("%s: preparing", s)
	return b.inTurns(ctx, rounds, func(e *environment) error {
		if err := e.populate(ctx, machines, s); err != nil {
			return err
		}
		if _, err := e.startManager(e.rev.name); err != nil {
			return err
		}
		return e.awaitConverged(ctx, machines, s)
	}, measure)
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

// count returns the number of children. It lists one child. The response contains the number of remaining children.
func (e *environment) count(ctx context.Context, k kind) (int, error) {
	data, err := e.raw.Get().AbsPath(k.children).Param("limit", "1").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	list := &metav1.PartialObjectMetadataList{}
	if err := json.Unmarshal(data, list); err != nil {
		return 0, err
	}
	return len(list.Items) + int(ptr.Deref(list.RemainingItemCount, 0)), nil
}

// awaitConverged waits until all children exist and all parents have converged.
func (e *environment) awaitConverged(ctx context.Context, k kind, s size) error {
	for {
		n, err := e.count(ctx, k)
		if err != nil {
			return err
		}
		if n >= s.total() {
			if converged, err := e.allConverged(ctx, k); err != nil || converged {
				return err
			}
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func (e *environment) allConverged(ctx context.Context, k kind) (bool, error) {
	list := k.parents()
	if err := e.admin.List(ctx, list); err != nil {
		return false, err
	}
	converged := true
	err := meta.EachListItem(list, func(item runtime.Object) error {
		converged = converged && k.converged(item.(client.Object))
		return nil
	})
	return converged, err
}
