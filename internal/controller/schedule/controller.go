// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule scales Deployments down and up at times that their annotations name.
//
// The package internal/schedule computes the events. decide.go is pure: it executes only the last event, and executes
// it once. So the operator catches up on a missed event, and does not undo a user's change before the next event. The
// operator records in annotations what it did, in the same request as the replicas.
package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/queue"
	"container.training/useless/internal/schedule"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "schedule"

	// fieldManager is the field manager of the replicas after a start or a stop.
	fieldManager = client.FieldOwner("useless-operator-schedule")

	workers = 16

	// longestWait bounds the time until the operator notices that its clock was set. A reconcile without a due event
	// costs no request.
	longestWait = 10 * time.Minute
)

// Options configure the controller.
type Options struct {
	// DefaultTimeZone is the IANA name of the time zone of schedules that have none. Empty means UTC.
	DefaultTimeZone string
}

// Validate returns an error if there is no such time zone.
func (o Options) Validate() error {
	_, err := o.zone()
	return err
}

func (o Options) zone() (*time.Location, error) {
	zone, err := schedule.ParseZone(cmp.Or(o.DefaultTimeZone, "UTC"))
	if err != nil {
		return nil, fmt.Errorf("invalid value %q for flag --default-time-zone: %w; use for example Europe/Berlin",
			o.DefaultTimeZone, err)
	}
	return zone, nil
}

// Controller reconciles Deployments that have a schedule.
type Controller struct {
	client   client.Client
	clock    clock.PassiveClock
	zone     *time.Location
	events   *events.Recorder
	metrics  *metrics
	warnings *warnings
	alarms   *queue.Alarms
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	zone, err := o.zone()
	if err != nil {
		return err
	}
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	metrics, err := newMetrics(registerer, collector{mgr.GetCache(), clock, zone})
	if err != nil {
		return err
	}
	c := &Controller{
		client:   client.WithFieldOwner(mgr.GetClient(), string(fieldManager)),
		clock:    clock,
		zone:     zone,
		events:   events.NewRecorder(mgr),
		metrics:  metrics,
		warnings: newWarnings(),
		alarms:   queue.NewAlarms(clock),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&appsv1.Deployment{}, builder.WithPredicates(pause.Predicate(), annotated)).
		Watches(&autoscalingv2.HorizontalPodAutoscaler{}, handler.EnqueueRequestsFromMapFunc(deploymentOf),
			builder.WithPredicates(retargeted)).
		WatchesRawSource(c.alarms.Source()).
		WithOptions(queue.Options(workers)).
		Complete(c)
}

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;patch
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile carries out the last start or stop of a Deployment, unless it was handled before.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	d := &appsv1.Deployment{}
	err := c.client.Get(ctx, request.NamespacedName, d, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !schedule.HasAny(d.Annotations):
		c.warnings.forget(request.NamespacedName)
		c.alarms.Set(request, time.Time{})
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case pause.IsPaused(d) || leftAlone(d):
		return reconcile.Result{}, nil
	}
	c.alarms.Set(request, time.Time{}) // only a valid schedule has a next event
	if schedule.IsUnscheduled(d.Annotations) && schedule.HasRecord(d.Annotations) {
		return reconcile.Result{}, c.act(ctx, d, remove(d))
	}
	s, problems := schedule.Parse(d.Annotations, c.zone)
	if len(problems) > 0 {
		reason, note := schedule.Explain(problems)
		c.warn(d, reason, "Parse", note)
		return reconcile.Result{}, nil // a user must fix them, and that change causes a reconcile
	}
	autoscalers, err := c.autoscalersOf(ctx, d)
	if err != nil {
		return reconcile.Result{}, err
	}
	conflict := conflict(s, autoscalers)
	c.warn(d, v1beta1.EventAutoscalerConflict, "Stop", conflict)
	p := decide(d, s, conflict != "", c.clock.Now())
	c.wakeUp(request, p.next)
	return reconcile.Result{}, c.act(ctx, d, p)
}

// wakeUp sets the time of the next reconcile.
func (c *Controller) wakeUp(request reconcile.Request, next time.Time) {
	latest := c.clock.Now().Add(longestWait)
	if next.IsZero() || next.After(latest) {
		next = latest
	}
	c.alarms.Set(request, next)
}

// act carries out a plan in one request, and emits its event.
func (c *Controller) act(ctx context.Context, d *appsv1.Deployment, p plan) error {
	if p.outcome == nothing {
		return nil
	}
	_, err := patch.Object(ctx, c.client, d, p.apply)
	switch {
	case err == nil:
		c.warnings.succeeded(d)
		c.announce(d, p)
	case apierrors.IsNotFound(err):
		return nil
	case !apierrors.IsConflict(err) && errors.As(err, new(apierrors.APIStatus)): // the API server answered
		c.metrics.count(p.transition, failed)
		if c.warnings.isFirstFailure(d, p.due) {
			c.events.Warning(d, v1beta1.EventScaleFailed, "Scale", "%s: %s", p.attempt(d), err)
		}
	}
	return err
}

// announce counts the outcome of a plan, and emits an event about it.
func (c *Controller) announce(d *appsv1.Deployment, p plan) {
	late := c.clock.Since(p.due)
	c.metrics.count(p.transition, p.outcome)
	if p.fired && (p.outcome == scaled || p.outcome == unchanged) {
		c.metrics.lag.Observe(late.Seconds())
	}
	before := replicas(d)
	switch {
	case p.transition == removal && p.outcome == scaled:
		c.events.Normal(d, nil, v1beta1.EventScheduleRemoved, "Start",
			"Scaled out from %d to %d replicas: the schedule that had scaled in is gone", before, p.replicas)
	case p.transition == removal:
		c.events.Normal(d, nil, v1beta1.EventScheduleRemoved, "Forget",
			"Left %d replicas as they are: the schedule is gone", p.replicas)
	case p.outcome != scaled:
	case p.transition == stop:
		c.events.Normal(d, nil, v1beta1.EventScheduledStop, "Stop", "Scaled in from %d to %d replicas (%s)",
			before, p.replicas, cause(d, v1beta1.StopScheduleAnnotation, p, late))
	default:
		c.events.Normal(d, nil, v1beta1.EventScheduledStart, "Start", "Scaled out from %d to %d replicas (%s)",
			before, p.replicas, cause(d, v1beta1.StartScheduleAnnotation, p, late))
	}
}

// cause returns "start-schedule "Mon-Fri 07:00", due ..., 3h late" for an event.
func cause(d *appsv1.Deployment, key string, p plan, late time.Duration) string {
	_, name, _ := strings.Cut(key, "/")
	text := fmt.Sprintf("%s %q, due %s", name, schedule.Truncate(d.Annotations[key]), schedule.FormatTime(p.due))
	if p.fired && late > time.Minute {
		text += fmt.Sprintf(", %s late", duration.HumanDuration(late))
	}
	return text
}

// warn emits an event for a new warning. An empty warning means that there is none any more.
func (c *Controller) warn(d *appsv1.Deployment, reason, action, warning string) {
	if c.warnings.isNew(d, warning) {
		c.events.Warning(d, reason, action, "%s", warning)
	}
}

// warnings remembers the last warnings about each Deployment, so that each one is emitted once. A restart repeats them.
type warnings struct {
	mu          sync.Mutex
	deployments map[types.NamespacedName]warned
}

type warned struct {
	uid     types.UID // of the Deployment
	warning string    // the last one
	failed  time.Time // the due time of the start or stop that failed last; zero for none
}

func newWarnings() *warnings { return &warnings{deployments: map[types.NamespacedName]warned{}} }

// change applies a function to the remembered warnings of a Deployment.
func (w *warnings) change(d client.Object, change func(*warned)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(d)
	known := w.deployments[key]
	if known.uid != d.GetUID() { // a new Deployment of the same name
		known = warned{uid: d.GetUID()}
	}
	change(&known)
	w.deployments[key] = known
}

// isNew remembers a warning, and reports whether it differs from the last one and is not empty.
func (w *warnings) isNew(d client.Object, warning string) (isNew bool) {
	w.change(d, func(known *warned) { isNew, known.warning = warning != "" && warning != known.warning, warning })
	return isNew
}

// isFirstFailure remembers that the start or stop with a due time has failed, and reports whether this is its first
// failure.
func (w *warnings) isFirstFailure(d client.Object, due time.Time) (first bool) {
	w.change(d, func(known *warned) { first, known.failed = !known.failed.Equal(due), due })
	return first
}

// succeeded forgets the last failure.
func (w *warnings) succeeded(d client.Object) {
	w.change(d, func(known *warned) { known.failed = time.Time{} })
}

// forget drops the warnings of a Deployment that does not exist any more.
func (w *warnings) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.deployments, key)
}
