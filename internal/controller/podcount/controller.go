// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podcount keeps a label on every ReplicaSet that says how many Pods it has.
//
// What to write, and when, follows from the ReplicaSet, the number of its Pods and the time alone (decide.go). Pods come
// and go in bursts, which are waited for (bursts.go), so that a ReplicaSet is written a few times and not once for
// every Pod. ReplicaSets and Pods are cached as metadata only, and little of that (cache.go).
package podcount

import (
	"context"
	"encoding/json"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/internal/object"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "podcount"

	workers = 4

	// fieldManager is who the API server says the label is from.
	fieldManager = client.FieldOwner("useless-operator-podcount")

	// podsByController is the index of the Pods that count by the UID of their ReplicaSet.
	podsByController = "useless/controller"
)

var (
	replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	podListKind    = corev1.SchemeGroupVersion.WithKind("PodList")
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// A Controller reconciles ReplicaSets.
type Controller struct {
	client  client.Client
	label   string
	clock   clock.PassiveClock
	metrics *metrics
	bursts  *bursts
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, partial(corev1.SchemeGroupVersion.WithKind("Pod")), podsByController, indexByController); err != nil {
		return err
	}
	metrics, err := newMetrics(registerer)
	if err != nil {
		return err
	}
	c := &Controller{client: mgr.GetClient(), label: options.Label, clock: clock, metrics: metrics, bursts: newBursts()}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		WatchesMetadata(&appsv1.ReplicaSet{}, c.onReplicaSet(), builder.WithPredicates(c.matters(), object.NotPaused())).
		WatchesMetadata(&corev1.Pod{}, c.onPod()).
		WithOptions(object.Options(workers)).
		Complete(c)
}

// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

// Reconcile writes the label of a ReplicaSet if it says something else than there is. While Pods come and go, it waits, but
// not for ever.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now, again := c.bursts.look(request.NamespacedName, c.clock.Now())
	if !now {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	rs := partial(replicaSetKind)
	if err := c.client.Get(ctx, request.NamespacedName, rs); err != nil {
		return reconcile.Result{RequeueAfter: again}, object.IgnoreGone(err)
	}
	pods, err := c.count(ctx, rs)
	if err != nil {
		return reconcile.Result{}, err
	}
	if value, write := decide(rs, c.label, pods); write {
		err = c.write(ctx, rs, value)
	}
	return reconcile.Result{RequeueAfter: again}, err
}

// count returns how many Pods the ReplicaSet has.
func (c *Controller) count(ctx context.Context, rs client.Object) (int, error) {
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(podListKind)
	err := c.client.List(ctx, pods, client.InNamespace(rs.GetNamespace()), client.MatchingFields{podsByController: string(rs.GetUID())},
		client.UnsafeDisableDeepCopy)
	return len(pods.Items), err
}

// write sets the label, and nothing else: whatever others write at the same time stays. The UID is a precondition, so
// that another ReplicaSet of the same name does not get this one's count. One that is gone needs no label.
func (c *Controller) write(ctx context.Context, rs *metav1.PartialObjectMetadata, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":    rs.UID,
		"labels": map[string]string{c.label: value},
	}})
	if err != nil {
		return err
	}
	if err = c.client.Patch(ctx, rs, client.RawPatch(types.MergePatchType, patch), fieldManager); apierrors.IsNotFound(err) {
		return nil
	}
	c.metrics.patches.Count(err)
	return err
}

// matters lets those events of ReplicaSets pass after which the label may be wrong. Their status changes far more often.
func (c *Controller) matters() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
				e.ObjectOld.GetLabels()[c.label] != e.ObjectNew.GetLabels()[c.label] ||
				object.Paused(e.ObjectOld) != object.Paused(e.ObjectNew)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// onReplicaSet wakes a ReplicaSet a while after it was created or changed.
func (c *Controller) onReplicaSet() handler.EventHandler {
	wake := func(object client.Object, queue queue) { c.wake(queue, client.ObjectKeyFromObject(object)) }
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue queue) { wake(e.Object, queue) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue queue) { wake(e.ObjectNew, queue) },
	}
}

// onPod wakes the ReplicaSets that have got or lost a Pod a while after they have.
func (c *Controller) onPod() handler.EventHandler {
	changed := func(before, after client.Object, queue queue) {
		lost, got := owner(before), owner(after)
		if lost == got {
			return
		}
		for _, rs := range []replicaSet{lost, got} {
			if rs.UID != "" {
				c.wake(queue, rs.NamespacedName)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue queue) { changed(nil, e.Object, queue) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue queue) { changed(e.ObjectOld, e.ObjectNew, queue) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, queue queue) { changed(e.Object, nil, queue) },
	}
}

func (c *Controller) wake(queue queue, rs types.NamespacedName) {
	queue.AddAfter(reconcile.Request{NamespacedName: rs}, c.bursts.note(rs, c.clock.Now()))
}

// indexByController indexes the Pods that count by the UID of their ReplicaSet.
func indexByController(pod client.Object) []string {
	if rs := owner(pod); rs.UID != "" {
		return []string{string(rs.UID)}
	}
	return nil
}

func partial(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}
