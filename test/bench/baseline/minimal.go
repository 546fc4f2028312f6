// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline contains programs for comparisons with the operator: a minimal client and two simple controllers.
// The benchmarks use the minimal client. In two mutation tests, the controllers replace the operator's controllers. The
// first controller comes from a tutorial. The second one works like operator-sdk's sample.
package baseline

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
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

// concurrency is the number of Machines for which Run creates Switches at the same time.
const concurrency = 32

// Run creates the Switches of all Machines in the namespace default. Then it turns down each Switch that goes up, until
// the context ends. It has no queue, and does not compare the actual state with the desired state. It sends only the
// requests that every controller must send. Like every controller, it decodes all events of Machines and Switches in
// informers.
func Run(ctx context.Context, config *rest.Config) error {
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	factory, err := startInformers(ctx, clientset)
	if err != nil {
		return err
	}
	group := clientset.UselessV1beta1()
	machines, err := group.Machines(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	workers, working := errgroup.WithContext(ctx)
	workers.SetLimit(concurrency)
	for i := range machines.Items {
		workers.Go(func() error { return converge(working, group, &machines.Items[i]) })
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	return flipAll(ctx, group, factory.Useless().V1beta1())
}

// startInformers keeps copies of all Machines and Switches until the context ends.
func startInformers(ctx context.Context, clientset versioned.Interface) (informers.SharedInformerFactory, error) {
	factory := informers.NewSharedInformerFactory(clientset, 0)
	kinds := []cache.SharedIndexInformer{
		factory.Useless().V1beta1().Machines().Informer(), factory.Useless().V1beta1().Switches().Informer(),
	}
	factory.Start(ctx.Done())
	for _, kind := range kinds {
		if !cache.WaitForCacheSync(ctx.Done(), kind.HasSynced) {
			return nil, ctx.Err()
		}
	}
	return factory, nil
}

// converge sends the N+2 requests that a new Machine with N Switches needs.
func converge(ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine) error {
	m, err := patch(ctx, clientset, m, map[string]any{"finalizers": []string{v1beta1.MachineFinalizer}}, nil)
	if err != nil {
		return err
	}
	for i := range m.Spec.Switches.Count {
		sw := newSwitch(m, fmt.Sprintf("%s-%d", m.Name, i))
		if _, err := clientset.Switches(m.Namespace).Create(ctx, sw, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	status := map[string]any{"status": convergedStatus(m, time.Now())}
	_, err = patch(ctx, clientset, m, map[string]any{}, status, "status")
	return err
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

// convergedStatus returns the status that the operator writes for a Machine with all its Switches and without a flip.
func convergedStatus(m *v1beta1.Machine, now time.Time) v1beta1.MachineStatus {
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
			condition(v1beta1.ConditionReady, v1beta1.ReasonUseless, "All switches exist and are down"),
		},
	}
}
