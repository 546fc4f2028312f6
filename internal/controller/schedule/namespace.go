// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
	"container.training/useless/internal/memory"
	"container.training/useless/internal/queue"
	"container.training/useless/internal/schedule"
)

// Namespaces reads the default schedules of Namespaces. It is also a reconciler that emits events about defaults that
// do not apply.
type Namespaces struct {
	client client.Client
	api    client.Reader // reads from the API server
	zone   *time.Location
	events *events.Recorder
	system []string // the Namespaces that cannot have a default schedule
	warned memory.Memory[warning]
}

// systemNamespaces are the Namespaces of Kubernetes itself.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// system returns the Namespaces that cannot have a default schedule.
func (o Options) system() []string { return append([]string{o.OwnNamespace}, systemNamespaces...) }

func (n *Namespaces) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name+"-namespaces").
		WithOptions(queue.Options(1)).
		For(&corev1.Namespace{}, builder.WithPredicates(redefined)).
		Complete(n)
}

// trimNamespace returns a Namespace with only its default schedule.
func trimNamespace(o any) (any, error) {
	namespace, ok := o.(*corev1.Namespace)
	if !ok {
		return o, nil
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace.Name, UID: namespace.UID, ResourceVersion: namespace.ResourceVersion,
		DeletionTimestamp: namespace.DeletionTimestamp,
		Annotations:       schedule.OfNamespace(namespace.Annotations),
	}}, nil
}

// redefined drops the updates of Namespaces that do not change the default schedule.
var redefined = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return !maps.Equal(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
}}

// Reconcile emits an event if the default schedule of a Namespace is invalid or does not apply.
func (n *Namespaces) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	namespace := &corev1.Namespace{}
	if err := n.client.Get(ctx, request.NamespacedName, namespace); err != nil {
		n.warned.Forget(request.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	w := n.decide(namespace)
	if w != n.warned.Of(namespace) {
		n.warned.Keep(namespace, w)
		if w != (warning{}) {
			n.events.Warning(namespace, w.reason, w.action, "%s", w.note)
		}
	}
	return reconcile.Result{}, nil
}

// decide returns a warning about the default schedule of a Namespace; zero for none.
func (n *Namespaces) decide(namespace *corev1.Namespace) warning {
	switch {
	case len(schedule.OfNamespace(namespace.Annotations)) == 0:
		return warning{}
	case slices.Contains(n.system, namespace.Name) && !schedule.IsUnscheduled(namespace.Annotations):
		return warning{v1beta1.EventScheduleIgnored, "Parse", fmt.Sprintf("Namespace %s cannot have a default "+
			"schedule: annotate its workloads", namespace.Name)}
	default:
		return invalid(schedule.ProblemsOfNamespace(namespace.Annotations, n.zone))
	}
}

// defaults returns the annotations of a Namespace that belong to a schedule. They belong to the cache and must not be
// changed. For a Namespace that cannot have a default schedule, defaults returns only DryRunAnnotation. It returns an
// error if the cache does not have the Namespace yet, because the Namespace may require a dry run.
func (n *Namespaces) defaults(ctx context.Context, name string) (map[string]string, error) {
	namespace := &corev1.Namespace{}
	err := n.client.Get(ctx, client.ObjectKey{Name: name}, namespace, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("read the Namespace: %w", err)
	}
	return defaultsOf(name, namespace.Annotations, n.system), nil
}

// defaultsOf returns the annotations of a Namespace. For a Namespace in system, it returns a copy that has only
// DryRunAnnotation.
func defaultsOf(namespace string, annotations map[string]string, system []string) map[string]string {
	if slices.Contains(system, namespace) {
		annotations = maps.Clone(annotations)
		maps.DeleteFunc(annotations, func(key, _ string) bool { return key != v1beta1.DryRunAnnotation })
	}
	return annotations
}

// confirm returns an error if the API server has a default schedule for a Namespace, but the given defaults have none.
// The cache of Namespaces can be older than the cache of workloads. Without this check, the operator could then start
// workloads that must stay stopped.
func (n *Namespaces) confirm(ctx context.Context, name string, defaults map[string]string) error {
	if slices.Contains(n.system, name) || !schedule.IsUnscheduled(defaults) {
		return nil
	}
	list := &corev1.NamespaceList{}
	if err := n.api.List(ctx, list, client.MatchingFields{metav1.ObjectNameField: name}); err != nil {
		return err
	}
	for i := range list.Items {
		if !schedule.IsUnscheduled(list.Items[i].Annotations) {
			return fmt.Errorf("the cache does not have the default schedule of Namespace %s yet", name)
		}
	}
	return nil
}

// defaulted are the names of the Namespaces with a default schedule. The event handler of Namespaces, workloadsIn,
// updates this set. The event predicate of workloads, scheduled, uses the set to drop the events of workloads without a
// schedule.
type defaulted struct{ names sync.Map }

func (d *defaulted) has(namespace string) bool {
	_, ok := d.names.Load(namespace)
	return ok
}

// update remembers whether a Namespace has a default schedule, and reports whether it has one or had one.
func (d *defaulted) update(o client.Object) bool {
	if len(schedule.OfNamespace(o.GetAnnotations())) > 0 && o.GetDeletionTimestamp().IsZero() {
		d.names.Store(o.GetName(), nil)
		return true
	}
	_, had := d.names.LoadAndDelete(o.GetName())
	return had
}

// workloadsIn returns requests for all workloads in a Namespace that has a default schedule, or had one before the
// event.
func (c *Controller) workloadsIn(ctx context.Context, namespace client.Object) (requests []reconcile.Request) {
	if !c.defaulted.update(namespace) || c.absent.Load() {
		return nil
	}
	// List would wait for the cache. When the cache is synced, all workloads are reconciled anyway.
	if c.kind.isOptional && !c.isSynced(ctx) {
		return nil
	}
	list := c.kind.list.DeepCopyObject().(client.ObjectList)
	err := c.client.List(ctx, list, client.InNamespace(namespace.GetName()), client.UnsafeDisableDeepCopy)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the workloads of a Namespace", "namespace", namespace.GetName())
		return nil
	}
	_ = apimeta.EachListItem(list, func(item runtime.Object) error {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item.(client.Object))})
		return nil
	})
	return requests
}
