// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ingress sets annotations on Ingresses. The managed fields of an Ingress record the annotations that the
// operator owns. When an annotation is removed from the configuration, the operator removes it only from Ingresses on
// which it owns the annotation. When the operator overwrites a value, the same request saves the old value in another
// annotation of the Ingress. The operator restores this value instead of removing the annotation.
//
// decide.go is pure: it computes the write from the Ingress, the configuration and the history of the Ingress. The
// history has the times of the last write and of the reverts by other writers. In a fight, another writer keeps
// reverting the annotations. The history then determines when the operator sets them again. ownership.go reads the
// records of earlier writes from the Ingress.
package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
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

// Options configure the controller.
type Options struct {
	// Annotations are set on every selected Ingress. Empty means none.
	Annotations Annotations

	// Policy applies to annotations that another client has set. Empty means PolicyAlways.
	Policy Policy

	// Classes select Ingresses by the name of their class. Empty selects all Ingresses.
	Classes Classes
}

// Policy defines the treatment of annotations that another client has set.
type Policy string

// Policies.
const (
	// PolicyAlways overwrites the values of other clients.
	PolicyAlways Policy = "Always"
	// PolicyIfNotPresent sets an annotation only if no other client has set it.
	PolicyIfNotPresent Policy = "IfNotPresent"
)

// AddFlags adds the controller's flags.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.Func("ingress-annotation", "a `key=value` annotation that the controller ingress sets on Ingresses; "+
		"repeat the flag for more annotations", o.Annotations.Set)
	flags.StringVar((*string)(&o.Policy), "ingress-annotation-policy", string(PolicyAlways),
		"Always overwrites annotations that other clients have set, IfNotPresent keeps them")
	flags.Func("ingress-class", "the `name` of a class of Ingresses that get the annotations; "+
		"repeat the flag for more classes (default: all)", o.Classes.Set)
}

// Validate returns an error for an unknown policy, and for options that have no effect or that contradict each other.
// It does not validate the annotations and the classes again, because their methods Set have validated them.
func (o Options) Validate() error {
	var errs []error
	switch o.Policy {
	case "", PolicyAlways:
	case PolicyIfNotPresent:
		if len(o.Annotations) == 0 {
			errs = append(errs, errors.New("--ingress-annotation-policy has no effect without --ingress-annotation"))
		}
	default:
		errs = append(errs, fmt.Errorf("invalid value %q for flag --ingress-annotation-policy: must be %s or %s",
			o.Policy, PolicyAlways, PolicyIfNotPresent))
	}
	if len(o.Annotations) == 0 && len(o.Classes) > 0 {
		errs = append(errs, errors.New("--ingress-class has no effect without --ingress-annotation"))
	}
	// The annotation would change the class of the selected Ingresses.
	if _, ok := o.Annotations[networkingv1beta1.AnnotationIngressClass]; ok && len(o.Classes) > 0 {
		errs = append(errs, fmt.Errorf("--ingress-class cannot be used with --ingress-annotation=%s=...: "+
			"that annotation changes the class", networkingv1beta1.AnnotationIngressClass))
	}
	return errors.Join(errs...)
}

// CacheOptions returns options that keep only the fields that the controller reads. These include the annotations, the
// class, and the managed fields of the annotations that the operator has set.
func (Options) CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&networkingv1.Ingress{}: {Transform: trimIngress}}
}

// Annotations maps keys to values.
type Annotations map[string]string

// Set adds an annotation from a flag, as key=value. It returns an error if the key is invalid, or if it belongs to the
// operator or to kubectl. It also returns an error if the key already has another value.
func (a *Annotations) Set(pair string) error {
	key, value, found := strings.Cut(pair, "=")
	if !found {
		return errors.New("want key=value, for example foo=bar")
	}
	if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 { // like the API server
		return fmt.Errorf("annotation key %q: %s", key, strings.Join(problems, "; "))
	}
	if strings.HasPrefix(key, v1beta1.GroupVersion.Group+"/") {
		return fmt.Errorf("annotation key %q: keys in %s are reserved for the operator",
			key, v1beta1.GroupVersion.Group)
	}
	if key == corev1.LastAppliedConfigAnnotation {
		return fmt.Errorf("annotation key %q: this key is reserved for kubectl", key)
	}
	if other, ok := (*a)[key]; ok && other != value {
		return fmt.Errorf("annotation key %q: got two values, %q and %q, want one", key, other, value)
	}
	if *a == nil {
		*a = Annotations{}
	}
	(*a)[key] = value
	return nil
}

// Classes are names of IngressClasses.
type Classes []string

// Set adds a name from a flag. It returns an error for a name that no IngressClass can have.
func (c *Classes) Set(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("class name %q: %s", name, strings.Join(problems, "; "))
	}
	if !slices.Contains(*c, name) {
		*c = append(*c, name)
	}
	return nil
}

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
// changing them back, the delay before the next write grows.
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
		c.reverts.Inc()
	}
	switch due := d.history.due; {
	case d.isEmpty():
		return reconcile.Result{}, nil
	case due.After(now):
		c.alarms.Set(request, due)
		if d.reverted {
			c.warnOfFight(ctx, ingress, d.set, due.Sub(now))
		}
		return reconcile.Result{}, nil
	default:
		return reconcile.Result{}, c.act(ctx, ingress, d)
	}
}

// act executes a plan. The resourceVersion is a precondition: without it, act could overwrite a new value that the plan
// does not save. The UID is also a precondition: without it, server-side apply would create a deleted Ingress again.
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

// warnOfFight emits a Warning with the field managers of the other writers. It reads them from the API server, because
// the cache does not keep all managed fields.
func (c *Controller) warnOfFight(
	ctx context.Context, ingress *networkingv1.Ingress, keys []string, delay time.Duration,
) {
	full := &metav1.PartialObjectMetadata{} // with the managed fields of all writers
	full.SetGroupVersionKind(kind)
	rival := "Another client"
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(ingress), full); err != nil {
		log.FromContext(ctx).Error(err, "Cannot read the field managers of the Ingress")
	} else if managers := rivals(full, keys); len(managers) > 0 {
		rival = "Field manager " + strings.Join(managers, " or ")
	}
	c.events.Warning(ingress, EventAnnotationReverted, "Wait", "%s keeps changing %s; setting it again in %s",
		rival, enumerate(keys), delay.Round(time.Second))
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
