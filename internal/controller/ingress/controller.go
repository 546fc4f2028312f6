// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ingress sets annotations on Ingresses. The managed fields of an Ingress record the annotations that the
// operator owns. If an annotation is removed from the configuration, the operator removes only the annotations that it
// owns. Before it overwrites a value, it saves the value in an annotation of the Ingress, to restore it later.
//
// decide.go is pure: it computes the write from the Ingress, the configuration and the history of the Ingress.
// ownership.go reads the records of earlier writes from the Ingress. In a fight, another writer keeps changing
// annotations, and fight.go decides when to set them again.
package ingress

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/internal/apierror"
	"container.training/useless/internal/events"
	"container.training/useless/internal/memory"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/queue"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "ingress"

	workers = 4

	// fieldManager is the field manager of the annotations.
	fieldManager = client.FieldOwner("useless-operator-ingress-annotations")
)

// Reasons of the events on an Ingress.
const (
	// EventAnnotationsEnsured names annotations that the operator has set, restored or removed.
	EventAnnotationsEnsured = "AnnotationsEnsured"
	// EventAnnotationReverted names annotations that another writer keeps changing, and its field manager.
	EventAnnotationReverted = "AnnotationReverted"
	// EventAnnotationsRefused names annotations that the API server refuses to change, and its reason.
	EventAnnotationsRefused = "AnnotationsRefused"
)

var kind = networkingv1.SchemeGroupVersion.WithKind("Ingress")

// Controller reconciles Ingresses.
type Controller struct {
	client  client.Client
	reader  client.Reader // reads fields that the cache does not keep
	options Options
	clock   clock.PassiveClock
	events  *events.Recorder
	applied patch.Counter
	reverts prometheus.Counter
	alarms  *queue.Alarms

	// The histories exist only in memory. After a restart during a fight, the controller sends a few more writes.
	histories memory.Memory[history]
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func (o Options) Setup(
	_ context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	c := &Controller{
		client:  mgr.GetClient(),
		reader:  mgr.GetAPIReader(),
		options: o,
		clock:   clock,
		events:  events.NewRecorder(mgr),
		applied: patch.NewCounter(registerer, "useless_ingress_annotations_applied_total",
			"Number of writes of an Ingress's annotations, by result (success or error)."),
		reverts: promauto.With(registerer).NewCounter(prometheus.CounterOpts{
			Name: "useless_ingress_annotations_reverts_total",
			Help: "Number of times that another writer changed annotations back.",
		}),
		alarms: queue.NewAlarms(clock),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&networkingv1.Ingress{}, builder.WithPredicates(changed(), pause.Predicate())).
		WatchesRawSource(c.alarms.Source()).
		WithOptions(queue.Options(workers)).
		Complete(c)
}

// changed accepts changes of an Ingress's annotations and class. It drops changes of the status, because Ingress
// controllers write the status often.
func changed() predicate.Predicate {
	class := func(object client.Object) string {
		return ptr.Deref(object.(*networkingv1.Ingress).Spec.IngressClassName, "")
	}
	return predicate.Or(predicate.AnnotationChangedPredicate{}, predicate.Funcs{
		UpdateFunc: func(update event.UpdateEvent) bool { return class(update.ObjectOld) != class(update.ObjectNew) },
	})
}

// +kubebuilder:rbac:groups=networking.k8s.io,resources=ingresses,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile changes the annotations of an Ingress if they differ from the configuration. If another writer keeps
// changing them back, each delay before the next write is longer.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	ingress := &networkingv1.Ingress{}
	err := c.client.Get(ctx, request.NamespacedName, ingress)
	switch {
	case apierrors.IsNotFound(err):
		c.histories.Forget(request.NamespacedName)
		c.alarms.Set(request, time.Time{})
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case !ingress.DeletionTimestamp.IsZero() || pause.IsPaused(ingress):
		return reconcile.Result{}, nil
	}
	now := c.clock.Now()
	d := decide(ingress, c.options, c.histories.Of(ingress), now)
	c.histories.Keep(ingress, d.history)
	if d.reverted {
		c.countRevert(ctx, ingress, d, now)
	}
	switch due := d.history.due; {
	case d.isEmpty():
		return reconcile.Result{}, nil
	case due.After(now):
		c.alarms.Set(request, due)
		return reconcile.Result{}, nil
	default:
		return reconcile.Result{}, c.act(ctx, ingress, d)
	}
}

// act executes a plan. The resourceVersion is a precondition, because act must not overwrite a value that is not saved.
// The UID is also a precondition. Without it, server-side apply would create a deleted Ingress again.
func (c *Controller) act(ctx context.Context, ingress *networkingv1.Ingress, d decision) error {
	patchType, annotations := types.ApplyPatchType, any(d.apply)
	options := []client.PatchOption{fieldManager, client.ForceOwnership}
	if len(d.patch) > 0 {
		patchType, annotations, options = types.MergePatchType, d.patch, options[:1]
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": kind.GroupVersion().String(),
		"kind":       kind.Kind,
		"metadata": map[string]any{
			"name": ingress.Name, "namespace": ingress.Namespace, "uid": ingress.UID,
			"resourceVersion": ingress.ResourceVersion, "annotations": annotations,
		},
	})
	if err != nil {
		return err
	}
	written := ingress.DeepCopy()
	err = c.client.Patch(ctx, written, client.RawPatch(patchType, body), options...)
	c.applied.Count(err)
	if err != nil {
		c.warn(ingress, d, err)
		return apierror.IgnoreGone(err)
	}
	c.histories.Keep(ingress, d.history.wrote(d.plan, c.clock.Now()))
	c.report(written, d.plan)
	return nil
}

// report emits events about a plan that was executed.
func (c *Controller) report(ingress *networkingv1.Ingress, p plan) {
	note := ""
	if len(p.unsaved) > 0 {
		note = "; the old value of " + enumerate(p.unsaved) + " is too large to save"
	}
	for _, change := range []struct {
		action, done string
		keys         []string
	}{
		{"Set", "Set", p.set}, {"Restore", "Restored", p.restore}, {"Remove", "Removed", p.remove},
	} {
		if len(change.keys) > 0 {
			c.events.Normal(ingress, nil, EventAnnotationsEnsured, change.action, "%s %s%s",
				change.done, enumerate(change.keys), note)
		}
		note = ""
	}
}

// countRevert counts a change by another writer. In a fight, it also emits a Warning with the field managers of the
// other writers. It reads them from the API server, because the cache does not keep all managed fields.
func (c *Controller) countRevert(ctx context.Context, ingress *networkingv1.Ingress, d decision, now time.Time) {
	c.reverts.Inc()
	if !d.history.fighting() {
		return
	}
	full := &metav1.PartialObjectMetadata{} // with the managed fields of all writers
	full.SetGroupVersionKind(kind)
	rival := "Another client"
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(ingress), full); err != nil {
		log.FromContext(ctx).Error(err, "Cannot read the field managers of the Ingress")
	} else if managers := rivals(full, d.set); len(managers) > 0 {
		rival = "Field manager " + strings.Join(managers, ", ")
	}
	c.events.Warning(ingress, EventAnnotationReverted, "Wait", "%s keeps changing %s; setting it again in %s",
		rival, enumerate(d.set), d.history.due.Sub(now).Round(time.Second))
}

// warn emits an event if the API server refuses a plan. It emits no event if a retry fails with the same error.
func (c *Controller) warn(ingress *networkingv1.Ingress, d decision, err error) {
	if !apierror.IsRefused(err) {
		return
	}
	after, news := d.history.refused(err)
	c.histories.Keep(ingress, after)
	if news {
		c.events.Warning(ingress, EventAnnotationsRefused, "Set", "Could not change %s: %s", enumerate(d.keys()), err)
	}
}

// enumerate returns text with the keys of at most three annotations, and the number of the others.
func enumerate(keys []string) string {
	const most = 3
	if more := len(keys) - most; more > 0 {
		return fmt.Sprintf("annotations %s and %d more", strings.Join(keys[:most], ", "), more)
	}
	if len(keys) == 1 {
		return "annotation " + keys[0]
	}
	return "annotations " + strings.Join(keys, ", ")
}
