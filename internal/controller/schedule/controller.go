// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule scales Deployments in and out at times that their annotations name.
//
// What counts is the last start or stop that has come (walltime.go, recurrence.go), not the next one, and it counts once
// (decide.go): what was missed is caught up with, and whoever scales by hand is left in peace until the next one. The
// operator remembers in annotations what it did (record.go), in the same request.
package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/internal/object"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "schedule"

	// fieldManager is who the API server says the replicas are from, once they were scaled.
	fieldManager = client.FieldOwner("useless-operator-schedule")

	workers = 16

	// duePriority puts what is due before everything else, above all before the backlog of a start, which
	// controller-runtime queues at -100 and would otherwise hand on to every RequeueAfter that comes of it.
	duePriority = 100

	// longestWait bounds how long a clock that was set, or a machine that slept, goes unnoticed. Looking costs no request.
	longestWait = 10 * time.Minute
)

// Options are what a cluster's administrator decides.
type Options struct {
	// DefaultTimeZone is the IANA name of the zone of schedules that name none, UTC by default.
	DefaultTimeZone string
}

// Validate returns an error if there is no such time zone.
func (o Options) Validate() error {
	_, err := o.zone()
	return err
}

func (o Options) zone() (*time.Location, error) {
	zone, err := parseZone(cmp.Or(o.DefaultTimeZone, "UTC"))
	if err != nil {
		return nil, fmt.Errorf("invalid value %q for flag --default-time-zone: %w; use for example Europe/Berlin", o.DefaultTimeZone, err)
	}
	return zone, nil
}

// A Controller reconciles Deployments that have a schedule.
type Controller struct {
	client  client.Client
	clock   clock.PassiveClock
	zone    *time.Location
	events  *object.Events
	metrics *metrics
	recent  *recent
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
	zone, err := options.zone()
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
		client:  client.WithFieldOwner(mgr.GetClient(), string(fieldManager)),
		clock:   clock,
		zone:    zone,
		events:  object.NewEvents(mgr),
		metrics: metrics,
		recent:  newRecent(),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&appsv1.Deployment{}, builder.WithPredicates(object.NotPaused(), annotated)).
		Watches(&autoscalingv2.HorizontalPodAutoscaler{}, handler.EnqueueRequestsFromMapFunc(deploymentOf),
			builder.WithPredicates(retargeted)).
		WithOptions(object.Options(workers)).
		Complete(c)
}

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;patch
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile carries out the last start or stop of a Deployment that has come, unless that was done, and asks to be called
// again when the next one comes.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	d := &appsv1.Deployment{}
	if err := c.client.Get(ctx, request.NamespacedName, d); err != nil || !hasAnnotations(d) {
		c.recent.forget(request.NamespacedName)
		return reconcile.Result{}, object.IgnoreGone(err)
	}
	if c.recent.outdated(d) || object.Paused(d) || leftAlone(d) {
		return reconcile.Result{}, nil
	}
	if unscheduled(d.Annotations) && remembered(d.Annotations) {
		return reconcile.Result{}, c.act(ctx, d, remove(d))
	}
	s, problems := parse(d.Annotations, c.zone)
	if len(problems) > 0 {
		// Only people can mend them, and doing so wakes us.
		reason, note := explain(problems)
		c.warn(d, reason, "Parse", note)
		return reconcile.Result{}, nil
	}
	autoscalers, err := c.autoscalersOf(ctx, d)
	if err != nil {
		return reconcile.Result{}, err
	}
	conflict := s.conflict(autoscalers)
	c.warn(d, EventAutoscalerConflict, "Stop", conflict)
	p := decide(d, s, conflict != "", c.clock.Now())
	return c.again(p.next, c.act(ctx, d, p))
}

// again asks for the next reconcile. It is asked for every time, because any event that comes before cancels what
// was asked for last: the priority queue keeps one entry for an object.
func (c *Controller) again(next time.Time, err error) (reconcile.Result, error) {
	if err != nil {
		return reconcile.Result{Priority: new(duePriority)}, err
	}
	wait := longestWait
	if !next.IsZero() {
		// At least a nanosecond: zero would mean never.
		wait = max(1, min(wait, next.Sub(c.clock.Now())))
	}
	return reconcile.Result{RequeueAfter: wait, Priority: new(duePriority)}, nil
}

// act carries out a plan in one request, and tells of it.
func (c *Controller) act(ctx context.Context, d *appsv1.Deployment, p plan) error {
	if p.outcome == nothing {
		return nil
	}
	written, err := object.Patch(ctx, c.client, d, p.apply)
	switch {
	case err == nil:
		c.recent.wrote(written)
		c.tell(d, p)
	case apierrors.IsNotFound(err):
		return nil
	case !apierrors.IsConflict(err) && errors.As(err, new(apierrors.APIStatus)): // and not that nobody has answered
		c.metrics.count(p.transition, failed)
		if c.recent.fails(d, p.due) {
			c.events.Warn(d, EventScaleFailed, "Scale", "%s: %s", p.attempt(d), err)
		}
	}
	return err
}

// tell says what was done, to whoever looks at the metrics or at the Deployment.
func (c *Controller) tell(d *appsv1.Deployment, p plan) {
	late := c.clock.Since(p.due)
	c.metrics.count(p.transition, p.outcome)
	if p.fired && (p.outcome == scaled || p.outcome == unchanged) {
		c.metrics.lag.Observe(late.Seconds())
	}
	switch {
	case p.transition == removal && p.outcome == scaled:
		c.events.Tell(d, nil, EventScheduleRemoved, "Start", "Scaled out from %d to %d replicas: the schedule that had scaled in is gone", replicas(d), p.replicas)
	case p.transition == removal:
		c.events.Tell(d, nil, EventScheduleRemoved, "Forget", "Left %d replicas as they are: the schedule is gone", p.replicas)
	case p.outcome != scaled:
	case p.transition == stop:
		c.events.Tell(d, nil, EventScheduledStop, "Stop", "Scaled in from %d to %d replicas (%s)", replicas(d), p.replicas, because(d, StopScheduleAnnotation, p, late))
	default:
		c.events.Tell(d, nil, EventScheduledStart, "Start", "Scaled out from %d to %d replicas (%s)", replicas(d), p.replicas, because(d, StartScheduleAnnotation, p, late))
	}
}

// because says which annotation has scaled, when it was due, and how late that is.
func because(d *appsv1.Deployment, key string, p plan, late time.Duration) string {
	text := fmt.Sprintf("%s %q, due %s", strings.TrimPrefix(key, prefix), clip(d.Annotations[key], maxValue), format(p.due))
	if p.fired && late > time.Minute {
		text += fmt.Sprintf(", %s late", duration.HumanDuration(late))
	}
	return text
}

// warn tells of what only people can mend, once. It wants to know, too, when there is nothing to tell.
func (c *Controller) warn(d *appsv1.Deployment, reason, action, warning string) {
	if c.recent.warns(d, warning) {
		c.events.Warn(d, reason, action, "%s", warning)
	}
}
