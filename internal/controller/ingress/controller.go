// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ingress ensures annotations on every Ingress, by server-side apply: the API server knows which of an Ingress's
// annotations are the operator's, so that those which leave the configuration can be removed again, and no others.
//
// What to apply follows from the Ingress and the configuration alone (decide.go), and when to apply it once more what
// somebody else has changed, from how often that has happened (fight.go). Ingresses are cached as metadata only (cache.go).
package ingress

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/internal/object"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "ingress"

	workers = 4

	// fieldManager is who the API server says the annotations are from.
	fieldManager = client.FieldOwner("useless-operator-ingress-annotations")
)

// Reasons of the events on an Ingress.
const (
	// EventAnnotationsEnsured names annotations that were set, or removed because they are not to be there any more.
	EventAnnotationsEnsured = "AnnotationsEnsured"
	// EventAnnotationReverted names annotations that somebody else keeps changing, and who does.
	EventAnnotationReverted = "AnnotationReverted"
	// EventAnnotationsRefused names annotations that the API server does not let the operator set or remove, and says why.
	EventAnnotationsRefused = "AnnotationsRefused"
)

var kind = networkingv1.SchemeGroupVersion.WithKind("Ingress")

// A Controller reconciles Ingresses.
type Controller struct {
	client      client.Client
	reader      client.Reader // reads from the API server what the cache does not keep
	annotations Annotations
	clock       clock.PassiveClock
	events      *object.Events
	metrics     *metrics
	histories   *histories
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func Setup(_ context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
	metrics, err := newMetrics(registerer)
	if err != nil {
		return err
	}
	c := &Controller{
		client:      mgr.GetClient(),
		reader:      mgr.GetAPIReader(),
		annotations: options.Annotations,
		clock:       clock,
		events:      object.NewEvents(mgr),
		metrics:     metrics,
		histories:   newHistories(),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		// A controller of Ingresses writes their status all the time.
		For(&networkingv1.Ingress{}, builder.OnlyMetadata, builder.WithPredicates(predicate.AnnotationChangedPredicate{}, object.NotPaused())).
		WithOptions(object.Options(workers)).
		Complete(c)
}

// +kubebuilder:rbac:groups=networking.k8s.io,resources=ingresses,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile applies the annotations of an Ingress if they are not what they are to be. Where somebody else keeps changing
// them, it waits longer and longer.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	ingress := &metav1.PartialObjectMetadata{}
	ingress.SetGroupVersionKind(kind)
	if err := c.client.Get(ctx, request.NamespacedName, ingress); err != nil {
		if apierrors.IsNotFound(err) {
			c.histories.forget(request.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	if !ingress.DeletionTimestamp.IsZero() || object.Paused(ingress) {
		return reconcile.Result{}, nil
	}
	known := c.histories.of(ingress)
	p := decide(ingress, c.annotations)
	if known.ahead(ingress.ResourceVersion) {
		return reconcile.Result{}, nil
	}
	if p.empty() {
		if after, news := known.settled(p, c.clock.Now()); news {
			c.histories.keep(ingress, after)
		}
		return reconcile.Result{}, nil
	}
	known, reverted := known.saw(p, c.clock.Now())
	if reverted {
		c.histories.keep(ingress, known)
		c.reverted(ctx, ingress, p, known)
	}
	if wait := known.due.Sub(c.clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return reconcile.Result{}, c.apply(ctx, ingress, p, known)
}

// apply has the operator own the annotations of a plan on an Ingress, and no others. The UID is a precondition: an Ingress
// that is being deleted at the same moment is not made again.
func (c *Controller) apply(ctx context.Context, ingress *metav1.PartialObjectMetadata, p plan, known history) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": kind.GroupVersion().String(),
		"kind":       kind.Kind,
		"metadata": map[string]any{
			"name": ingress.Name, "namespace": ingress.Namespace, "uid": ingress.UID,
			"annotations": p.annotations,
		},
	})
	if err != nil {
		return err
	}
	applied := ingress.DeepCopy()
	err = c.client.Patch(ctx, applied, client.RawPatch(types.ApplyPatchType, patch), fieldManager, client.ForceOwnership)
	c.metrics.applied.Count(err)
	if err != nil {
		c.refused(ingress, p, known, err)
		return err
	}
	c.histories.keep(ingress, known.wrote(applied.ResourceVersion, p, c.clock.Now()))
	if len(p.set) > 0 {
		c.events.Tell(applied, nil, EventAnnotationsEnsured, "Set", "Set %s", enumerate(p.set))
	}
	// An annotation that somebody else has applied as well is theirs from now on, and still there.
	removed := slices.DeleteFunc(p.remove, func(key string) bool { return metav1.HasAnnotation(applied.ObjectMeta, key) })
	if len(removed) > 0 {
		c.events.Tell(applied, nil, EventAnnotationsEnsured, "Remove", "Removed %s", enumerate(removed))
	}
	return nil
}

// reverted tells of annotations that were changed again after they had been set. Only where it has become a fight is it
// worth a warning, and a request for who else is in it.
func (c *Controller) reverted(ctx context.Context, ingress *metav1.PartialObjectMetadata, p plan, known history) {
	c.metrics.reverts.Inc()
	if !known.fighting() {
		return
	}
	full := &metav1.PartialObjectMetadata{} // all of its metadata
	full.SetGroupVersionKind(kind)
	who := "Somebody"
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(ingress), full); err != nil {
		log.FromContext(ctx).Error(err, "Cannot tell who changes the annotations")
	} else if managers := rivals(full, p.set); len(managers) > 0 {
		who = "Field manager " + strings.Join(managers, ", ")
	}
	c.events.Warn(ingress, EventAnnotationReverted, "Wait", "%s keeps changing %s; setting it again in %s",
		who, enumerate(p.set), known.due.Sub(c.clock.Now()).Round(time.Second))
}

// refused tells of what the API server does not let the operator do, once and not for every try.
func (c *Controller) refused(ingress *metav1.PartialObjectMetadata, p plan, known history, err error) {
	if !object.Refused(err) || replaced(err) {
		return
	}
	known, news := known.refused(err)
	c.histories.keep(ingress, known)
	if news {
		c.events.Warn(ingress, EventAnnotationsRefused, "Set", "Could not change %s: %s", enumerate(slices.Concat(p.set, p.remove)), err)
	}
}

// replaced reports whether a request was refused because there is another Ingress of the same name by now.
func replaced(err error) bool {
	cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
	return ok && cause.Field == "metadata.uid"
}

// enumerate names annotations, as many as an event has room for.
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
