// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline has what the operator is measured against: a bare loop of a client, and controllers as the tutorial
// and operator-sdk's sample describe them. Each runs as a process of its own, as the operator does.
package baseline

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/informers"
	"container.training/useless/client/versioned"
	typed "container.training/useless/client/versioned/typed/useless/v1beta1"
)

// Bare is the floor: a loop that knows what is missing, without a queue, a cache or a decision. It makes exactly the
// requests that a controller has to make.
type Bare struct {
	// Concurrency is how many Machines are worked on at a time.
	Concurrency int
	// Informer decodes every event of Machines and switches beside the loop, as a controller has to.
	Informer bool
	// Flip turns switches down, rather than to make them.
	Flip bool
}

// Run brings all Machines of the namespace default to what the operator makes of them.
func (b Bare) Run(ctx context.Context, config *rest.Config) error {
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	if b.Informer {
		if err := watchAll(ctx, clientset); err != nil {
			return err
		}
	}
	todo := b.convergeAll
	if b.Flip {
		todo = b.flipAll
	}
	return todo(ctx, clientset.UselessV1beta1())
}

// convergeAll gives all Machines their switches.
func (b Bare) convergeAll(ctx context.Context, clientset typed.UselessV1beta1Interface) error {
	machines, err := clientset.Machines(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return forEach(ctx, b.Concurrency, machines.Items, func(ctx context.Context, m *v1beta1.Machine) error {
		return converge(ctx, clientset, m)
	})
}

// flipAll turns all switches down that were noticed to be up, the one that has been up for longest first.
func (b Bare) flipAll(ctx context.Context, clientset typed.UselessV1beta1Interface) error {
	switches, err := clientset.Switches(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	up := slices.DeleteFunc(switches.Items, func(sw v1beta1.Switch) bool { return sw.Status.SeenAt == nil })
	slices.SortFunc(up, func(a, b v1beta1.Switch) int { return a.Status.SeenAt.Compare(b.Status.SeenAt.Time) })
	return forEach(ctx, b.Concurrency, up, func(ctx context.Context, sw *v1beta1.Switch) error {
		return turnDown(ctx, clientset, sw)
	})
}

// forEach does something with all items in their order, with so many at a time.
func forEach[T any](ctx context.Context, concurrency int, items []T, do func(context.Context, *T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range concurrency {
		group.Go(func() error {
			for i := next.Add(1) - 1; int(i) < len(items); i = next.Add(1) - 1 {
				if err := do(ctx, &items[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// watchAll keeps a copy of all Machines and switches, until the context ends.
func watchAll(ctx context.Context, clientset versioned.Interface) error {
	factory := informers.NewSharedInformerFactory(clientset, 0)
	kinds := []cache.SharedIndexInformer{
		factory.Useless().V1beta1().Machines().Informer(), factory.Useless().V1beta1().Switches().Informer(),
	}
	factory.Start(ctx.Done())
	for _, kind := range kinds {
		if !cache.WaitForCacheSync(ctx.Done(), kind.HasSynced) {
			return ctx.Err()
		}
	}
	return nil
}

// converge makes the N+2 requests that a new Machine of N switches takes.
func converge(ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine) error {
	m, err := patch(ctx, clientset, m, map[string]any{"finalizers": []string{v1beta1.MachineFinalizer}}, nil)
	if err != nil {
		return err
	}
	for i := range m.Spec.Switches.Count {
		sw := NewSwitch(m, fmt.Sprintf("%s-%d", m.Name, i))
		if _, err := clientset.Switches(m.Namespace).Create(ctx, sw, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	_, err = patch(ctx, clientset, m, map[string]any{}, map[string]any{"status": ConvergedStatus(m, time.Now())}, "status")
	return err
}

func patch(
	ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine, metadata, others map[string]any, subresources ...string,
) (*v1beta1.Machine, error) {
	data, err := mergePatch(m, metadata, others)
	if err != nil {
		return nil, err
	}
	return clientset.Machines(m.Namespace).Patch(ctx, m.Name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
}

// turnDown writes the position together with the instant, as the operator does.
func turnDown(ctx context.Context, clientset typed.UselessV1beta1Interface, sw *v1beta1.Switch) error {
	annotations := map[string]string{v1beta1.FlippedAtAnnotation: time.Now().UTC().Format(metav1.RFC3339Micro)}
	data, err := mergePatch(sw, map[string]any{"annotations": annotations}, map[string]any{"spec": v1beta1.SwitchSpec{Position: v1beta1.PositionDown}})
	if err != nil {
		return err
	}
	_, err = clientset.Switches(sw.Namespace).Patch(ctx, sw.Name, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}

// mergePatch changes an object's metadata and other fields, unless it has changed since it was read.
func mergePatch(read metav1.Object, metadata, others map[string]any) ([]byte, error) {
	metadata["resourceVersion"] = read.GetResourceVersion()
	change := map[string]any{"metadata": metadata}
	maps.Copy(change, others)
	return json.Marshal(change)
}

// NewSwitch is a switch of a Machine as the operator makes it.
func NewSwitch(m *v1beta1.Machine, name string) *v1beta1.Switch {
	return &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       m.Namespace,
			Name:            name,
			Labels:          m.SwitchLabels(),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind("Machine"))},
		},
		Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	}
}

// ConvergedStatus is what the operator says of a Machine that has all its switches, and has never flipped one.
func ConvergedStatus(m *v1beta1.Machine, now time.Time) v1beta1.MachineStatus {
	n := m.Spec.Switches.Count
	condition := func(kind, reason, message string) metav1.Condition {
		return metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message,
			ObservedGeneration: m.Generation, LastTransitionTime: metav1.NewTime(now),
		}
	}
	return v1beta1.MachineStatus{
		ObservedGeneration: m.Generation,
		Selector:           v1beta1.MachineLabel + "=" + m.Name,
		Switches:           v1beta1.SwitchCounts{Total: n, Down: n},
		Positions:          strings.Repeat("d", int(n)),
		Position:           v1beta1.PositionDown,
		Conditions: []metav1.Condition{
			condition(v1beta1.ConditionScaled, v1beta1.ReasonCountReached, fmt.Sprintf("%d of %d switches", n, n)),
			condition(v1beta1.ConditionResting, v1beta1.ReasonAllDown, "All switches are down"),
			condition(v1beta1.ConditionReady, v1beta1.ReasonUseless, "All switches are there, and down"),
		},
	}
}
