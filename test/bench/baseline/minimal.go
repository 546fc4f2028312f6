// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline contains programs for comparisons with the operator. The benchmarks use two simple clients and the
// algorithm of the ReplicaSet controller. In two mutation tests, two other controllers replace the operator's
// controllers: one comes from a tutorial, and one works like operator-sdk's sample.
package baseline

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/informers"
	"container.training/useless/client/versioned"
	typed "container.training/useless/client/versioned/typed/useless/v1beta1"
)

// concurrency is the number of Machines for which Create and Run create Switches at the same time.
const concurrency = 32

// Create creates the Switches of all Machines in the namespace default. It does nothing else. No controller can be
// faster.
func Create(ctx context.Context, config *rest.Config) error {
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	return forEachMachine(ctx, clientset, createSwitches)
}

// Run creates the Switches of all Machines in the namespace default. Then it turns down each Switch that goes up, until
// the context ends. It has no queue, and does not compare the actual state with the desired state. It sends only the
// requests that every controller must send. Like every controller, it decodes all events of Machines and Switches in
// informers.
func Run(ctx context.Context, config *rest.Config) error {
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(clientset, 0)
	kinds := factory.Useless().V1beta1()
	kinds.Machines().Informer()
	kinds.Switches().Informer()
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		return err
	}
	if err := forEachMachine(ctx, clientset, converge); err != nil {
		return err
	}
	return flipAll(ctx, clientset.UselessV1beta1(), kinds)
}

// forEachMachine calls do for all Machines in the namespace default.
func forEachMachine(
	ctx context.Context, clientset versioned.Interface,
	do func(context.Context, typed.UselessV1beta1Interface, *v1beta1.Machine) error,
) error {
	group := clientset.UselessV1beta1()
	machines, err := group.Machines(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(concurrency)
	for i := range machines.Items {
		workers.Go(func() error { return do(ctx, group, &machines.Items[i]) })
	}
	return workers.Wait()
}

// converge sends the N+2 requests that a new Machine with N Switches needs.
func converge(ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine) error {
	m, err := patch(ctx, clientset, m, map[string]any{"finalizers": []string{v1beta1.MachineFinalizer}}, nil)
	if err != nil {
		return err
	}
	if err := createSwitches(ctx, clientset, m); err != nil {
		return err
	}
	status := map[string]any{"status": statusOf(m, m.Spec.Switches.Count)}
	_, err = patch(ctx, clientset, m, map[string]any{}, status, "status")
	return err
}

func createSwitches(ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine) error {
	for i := range m.Spec.Switches.Count {
		sw := newSwitch(m, fmt.Sprintf("%s-%d", m.Name, i))
		if _, err := clientset.Switches(m.Namespace).Create(ctx, sw, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// patch changes a Machine's metadata and other fields. The API server rejects the change with a conflict if the Machine
// has changed since m was read.
func patch(
	ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine,
	metadata, others map[string]any, subresources ...string,
) (*v1beta1.Machine, error) {
	metadata["resourceVersion"] = m.ResourceVersion
	change := map[string]any{"metadata": metadata}
	maps.Copy(change, others)
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	machines := clientset.Machines(m.Namespace)
	return machines.Patch(ctx, m.Name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
}

// newSwitch returns a Switch of a Machine as the operator creates it.
func newSwitch(m *v1beta1.Machine, name string) *v1beta1.Switch {
	owner := metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind("Machine"))
	return &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: name, Labels: m.SwitchLabels(), OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	}
}

// statusOf returns the status that the operator writes for a Machine with n Switches that are down, and without a flip.
func statusOf(m *v1beta1.Machine, n int32) v1beta1.MachineStatus {
	status := v1beta1.MachineStatus{
		ObservedGeneration: m.Generation,
		Selector:           v1beta1.MachineLabel + "=" + m.Name,
		Switches:           v1beta1.SwitchCounts{Total: n, Down: n},
		Positions:          strings.Repeat("d", int(n)),
		Position:           v1beta1.PositionDown,
		Conditions:         slices.Clone(m.Status.Conditions),
	}
	set := func(kind string, is metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: is, Reason: reason, Message: message, ObservedGeneration: m.Generation,
		})
	}
	count := fmt.Sprintf("%d of %d switches", n, m.Spec.Switches.Count)
	set(v1beta1.ConditionResting, metav1.ConditionTrue, v1beta1.ReasonAllDown, "All switches are down")
	if n == m.Spec.Switches.Count {
		set(v1beta1.ConditionScaled, metav1.ConditionTrue, v1beta1.ReasonCountReached, count)
		set(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonUseless, "All switches exist and are down")
	} else {
		set(v1beta1.ConditionScaled, metav1.ConditionFalse, v1beta1.ReasonScaling, count)
		set(v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonNotScaled, count)
	}
	return status
}
