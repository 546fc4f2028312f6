// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule stops and starts workloads at the times in their annotations.
//
// One controller runs for each kind of workload, see kind.go. The package internal/schedule computes the events.
// decide.go has no side effects. It handles only the last event, and handles it only once. So the operator catches up
// on a missed event, and does not undo a user's change before the next event. The operator records each event in
// annotations, in the same request as the change.
package schedule

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
	"container.training/useless/internal/memory"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/queue"
	"container.training/useless/internal/schedule"
)

const (
	// Name is the controller's name in --controllers. In logs and metrics, the kind is appended, as in
	// schedule-deployments.
	Name = "schedule"

	// fieldManager is the field manager of the fields that a start or a stop changes.
	fieldManager = client.FieldOwner("useless-operator-schedule")

	workers = 16

	// workloadsWithAnnotations is the index of workloads with annotations of a schedule.
	workloadsWithAnnotations = "useless/schedule"
)

// Options configure the controller.
type Options struct {
	// Kinds are the names of the kinds of workloads that schedules apply to. Empty means all kinds.
	Kinds []string
	// DefaultTimeZone is the IANA name of the time zone of schedules that have none. Empty means UTC.
	DefaultTimeZone string
}

// AddFlags adds the controller's flags.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.Func("schedule-kinds", "a comma-separated list of the kinds of workloads that schedules apply to; "+
		"repeat the flag to append to the list (default: all kinds)\n"+
		"All kinds: "+strings.Join(Kinds(), ", "), func(list string) error {
		o.Kinds = append(o.Kinds, strings.Split(list, ",")...)
		return nil
	})
	flags.StringVar(&o.DefaultTimeZone, "default-time-zone", "UTC",
		"the IANA time zone of schedules without a time zone")
}

// Validate returns an error if a kind or the time zone does not exist.
func (o Options) Validate() error {
	_, zoneErr := o.zone()
	_, kindErr := kindsNamed(o.Kinds)
	return errors.Join(kindErr, zoneErr)
}

func (o Options) zone() (*time.Location, error) {
	zone, err := schedule.ParseZone(cmp.Or(o.DefaultTimeZone, "UTC"))
	if err != nil {
		return nil, fmt.Errorf("invalid value %q for flag --default-time-zone: %w; use for example Europe/Berlin",
			o.DefaultTimeZone, err)
	}
	return zone, nil
}

// CacheOptions returns options that keep only the fields of workloads and HorizontalPodAutoscalers that the controller
// reads.
func (o Options) CacheOptions() map[client.Object]cache.ByObject {
	options := map[client.Object]cache.ByObject{}
	enabled, _ := kindsNamed(o.Kinds) // Validate returns the error
	// Autoscalers are read for conflicts, even if they have no schedules.
	for _, k := range append([]*kind{horizontalPodAutoscalers}, enabled...) {
		if k.trim != nil {
			options[k.object] = cache.ByObject{Transform: k.transform}
		}
	}
	return options
}

// Controller reconciles the workloads of one kind that have a schedule.
type Controller struct {
	kind    *kind
	gvk     schema.GroupVersionKind
	client  client.Client
	clock   clock.PassiveClock
	zone    *time.Location
	events  *events.Recorder
	metrics *metrics
	alarms  *queue.Alarms
	absent  atomic.Bool // the API server does not serve the kind, so the cache does not watch it

	// The last warning about a workload, and the start or stop that failed last with the time at which it was due. So
	// each of them is emitted once. A restart repeats them.
	warned   memory.Memory[warning]
	failures memory.Memory[string]
}

// Setup adds a controller for each kind to a manager. Their metrics go to the registerer.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	zone, err := o.zone()
	if err != nil {
		return err
	}
	enabled, err := kindsNamed(o.Kinds)
	if err != nil {
		return err
	}
	if err := indexAutoscalers(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	controllers := make([]*Controller, 0, len(enabled))
	for _, k := range enabled {
		controllers = append(controllers, &Controller{
			kind:   k,
			client: client.WithFieldOwner(mgr.GetClient(), string(fieldManager)),
			clock:  clock,
			zone:   zone,
			events: events.NewRecorder(mgr),
			alarms: queue.NewAlarms(clock),
		})
	}
	metrics := newMetrics(registerer, collector{mgr.GetCache(), controllers})
	for _, c := range controllers {
		c.metrics = metrics
		if err := c.setup(ctx, mgr); err != nil {
			return fmt.Errorf("%s: %w", c.kind.name, err)
		}
	}
	return nil
}

func (c *Controller) setup(ctx context.Context, mgr ctrl.Manager) (err error) {
	if c.gvk, err = apiutil.GVKForObject(c.kind.object, mgr.GetScheme()); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		Named(Name + "-" + c.kind.name).
		WatchesRawSource(c.alarms.Source()).
		WithOptions(queue.Options(workers))
	if c.absent.Store(c.kind.isOptional); c.kind.isOptional {
		running, err := b.Build(c)
		if err != nil {
			return err
		}
		return c.addPresence(mgr, running)
	}
	if err := c.index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	b = b.For(c.kind.object, builder.WithPredicates(pause.Predicate(), annotated))
	if c.kind.isScalable {
		b = b.Watches(&autoscalingv2.HorizontalPodAutoscaler{}, handler.EnqueueRequestsFromMapFunc(c.targetOf),
			builder.WithPredicates(retargeted))
	}
	return b.Complete(c)
}

// index indexes the workloads that have annotations of a schedule.
func (c *Controller) index(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, c.kind.object, workloadsWithAnnotations, func(o client.Object) []string {
		if hasSchedule(o) {
			return []string{"true"}
		}
		return nil
	})
}

// annotated accepts the events of workloads that have, or had, annotations of a schedule.
var annotated = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return hasSchedule(e.Object) },
	UpdateFunc: func(e event.UpdateEvent) bool { return hasSchedule(e.ObjectOld) || hasSchedule(e.ObjectNew) },
	DeleteFunc: func(e event.DeleteEvent) bool { return hasSchedule(e.Object) },
}

func hasSchedule(o client.Object) bool { return schedule.HasAny(o.GetAnnotations()) }

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile carries out the last start or stop of a workload, unless it was handled before.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if c.absent.Load() {
		return reconcile.Result{}, nil // the CustomResourceDefinition was removed, and all workloads with it
	}
	o := c.kind.object.DeepCopyObject().(client.Object)
	err := c.client.Get(ctx, request.NamespacedName, o, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !hasSchedule(o):
		c.warned.Forget(request.NamespacedName)
		c.failures.Forget(request.NamespacedName)
		c.alarms.Set(request, time.Time{})
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case pause.IsPaused(o) || c.kind.leaveAlone(o):
		return reconcile.Result{}, nil
	}
	autoscalers, err := c.autoscalersOf(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := c.kind.decide(o, autoscalers, c.zone, c.clock.Now())
	c.alarms.Set(request, p.wakeUp)
	return reconcile.Result{}, c.act(ctx, o, p)
}

// act carries out a plan in one request, and emits its events.
func (c *Controller) act(ctx context.Context, o client.Object, p plan) error {
	c.warn(o, p.warning)
	if p.outcome == nothing {
		return nil
	}
	_, err := patch.Object(ctx, c.client, o, func(o client.Object) { c.kind.apply(o, p) })
	switch {
	case err == nil:
		c.isNewFailure(o, "")
		c.announce(o, p)
	case apierrors.IsNotFound(err):
		return nil
	case !apierrors.IsConflict(err) && errors.As(err, new(apierrors.APIStatus)): // the API server answered
		c.metrics.count(c.kind, p.transition, failed)
		if c.isNewFailure(o, string(p.transition)+schedule.FormatTime(p.due)) {
			c.events.Warning(o, v1beta1.EventScaleFailed, "Scale", "%s: %s", p.attempt(), err)
		}
	}
	return err
}

// warn emits an event if a warning differs from the last one. The zero warning means that there is nothing to warn
// about any more.
func (c *Controller) warn(o client.Object, w warning) {
	if w == c.warned.Of(o) {
		return
	}
	c.warned.Keep(o, w)
	if w != (warning{}) {
		c.events.Warning(o, w.reason, w.action, "%s", w.note)
	}
}

// isNewFailure remembers a failure, and reports whether it differs from the previous one. An empty failure means
// success.
func (c *Controller) isNewFailure(o client.Object, failure string) bool {
	if failure == c.failures.Of(o) {
		return false
	}
	c.failures.Keep(o, failure)
	return true
}

// attempt describes the change that failed.
func (p plan) attempt() string {
	switch {
	case p.transition == removal && p.outcome != scaled:
		return "Could not remove the annotations of the removed schedule"
	case p.outcome != scaled:
		return "Could not record when the next start or stop is due"
	case p.transition == stop:
		return "Could not stop"
	default:
		return "Could not start"
	}
}

// announce counts the outcome of a plan, and emits an event about it.
func (c *Controller) announce(o client.Object, p plan) {
	late := c.clock.Since(p.due)
	c.metrics.count(c.kind, p.transition, p.outcome)
	if p.fired && (p.outcome == scaled || p.outcome == unchanged) {
		c.metrics.lag.Observe(late.Seconds())
	}
	change := c.kind.describe(c.kind.level(o), p.level)
	switch {
	case p.transition == removal && p.outcome == scaled:
		c.events.Normal(o, nil, v1beta1.EventScheduleRemoved, "Start",
			"%s: the schedule that stopped the workload is gone", change)
	case p.transition == removal:
		c.events.Normal(o, nil, v1beta1.EventScheduleRemoved, "Forget", "Changed nothing: the schedule is gone")
	case p.outcome != scaled:
	case p.transition == stop:
		c.events.Normal(o, nil, v1beta1.EventScheduledStop, "Stop", "%s (%s)", change,
			cause(o, v1beta1.StopScheduleAnnotation, p, late))
	default:
		c.events.Normal(o, nil, v1beta1.EventScheduledStart, "Start", "%s (%s)", change,
			cause(o, v1beta1.StartScheduleAnnotation, p, late))
	}
}

// cause returns "start-schedule "Mon-Fri 07:00", due ..., 3h late" for an event.
func cause(o client.Object, key string, p plan, late time.Duration) string {
	_, name, _ := strings.Cut(key, "/")
	text := fmt.Sprintf("%s %q, due %s", name, schedule.Truncate(o.GetAnnotations()[key]), schedule.FormatTime(p.due))
	if p.fired && late > time.Minute {
		text += fmt.Sprintf(", %s late", duration.HumanDuration(late))
	}
	return text
}
