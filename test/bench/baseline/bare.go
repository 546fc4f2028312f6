// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline has what the operator is measured against: a bare loop of a client, and controllers as the tutorial
// and operator-sdk's sample describe them. Each runs as a process of its own, as the operator does.
package baseline

import (
	"context"
	"encoding/json"
	"fmt"
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
	machines, err := clientset.UselessV1beta1().Machines(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range b.Concurrency {
		group.Go(func() error {
			for i := next.Add(1) - 1; int(i) < len(machines.Items); i = next.Add(1) - 1 {
				if err := converge(ctx, clientset.UselessV1beta1(), &machines.Items[i]); err != nil {
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
	finalizer := map[string]any{"metadata": map[string]any{
		"resourceVersion": m.ResourceVersion, "finalizers": []string{v1beta1.MachineFinalizer},
	}}
	m, err := patch(ctx, clientset, m, finalizer)
	if err != nil {
		return err
	}
	for i := range m.Spec.Switches.Count {
		sw := NewSwitch(m, fmt.Sprintf("%s-%d", m.Name, i))
		if _, err := clientset.Switches(m.Namespace).Create(ctx, sw, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	status := map[string]any{"metadata": map[string]any{"resourceVersion": m.ResourceVersion}, "status": ConvergedStatus(m, time.Now())}
	_, err = patch(ctx, clientset, m, status, "status")
	return err
}

func patch(ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine, change map[string]any, subresources ...string) (*v1beta1.Machine, error) {
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return clientset.Machines(m.Namespace).Patch(ctx, m.Name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
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
