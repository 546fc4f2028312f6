// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule stops and starts workloads at times that their annotations name.
//
// One controller runs for each kind of workload, see kind.go. The package internal/schedule computes the events. decide.go is pure: it executes only the last event, and executes
// it once. So the operator catches up on a missed event, and does not undo a user's change before the next event. The
// operator records in annotations what it did, in the same request as the change.
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
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
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

	// fieldManager is the field manager of what changes at a start or a stop.
	fieldManager = client.FieldOwner("useless-operator-schedule")

	workers = 16

	// longestWait bounds the time until the operator notices that its clock was set. A reconcile without a due event
	// costs no request.
	longestWait = 10 * time.Minute
)

// Options configure the controller.
type Options struct {
	// Kinds are the names of the kinds of workloads that schedules apply to. Empty means all kinds.
	Kinds []string
	// DefaultTimeZone is the IANA name of the time zone of schedules that have none. Empty means UTC.
	DefaultTimeZone string
}

// Validate returns an error if there is no such kind or time zone.
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

// Controller reconciles the workloads of one kind that have a schedule.
type Controller struct {
	kind     *kind
	gvk      schema.GroupVersionKind
	client   client.Client
	clock    clock.PassiveClock
	zone     *time.Location
	events   *events.Recorder
	metrics  *metrics
	warnings *warnings
	alarms   *queue.Alarms
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
	metrics, err := newMetrics(registerer, collector{mgr.GetCache(), clock, zone, enabled})
	if err != nil {
		return err
	}
	for _, k := range enabled {
		c := &Controller{
			kind:     k,
			client:   client.WithFieldOwner(mgr.GetClient(), string(fieldManager)),
			clock:    clock,
			zone:     zone,
			events:   events.NewRecorder(mgr),
			metrics:  metrics,
			warnings: newWarnings(),
			alarms:   queue.NewAlarms(clock),
		}
		if err := c.setup(ctx, mgr); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

func (c *Controller) setup(ctx context.Context, mgr ctrl.Manager) (err error) {
	if c.gvk, err = apiutil.GVKForObject(c.kind.object, mgr.GetScheme()); err != nil {
		return err
	}
	if err := indexAnnotated(ctx, mgr.GetFieldIndexer(), c.kind.object); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		Named(Name+"-"+c.kind.name).
		For(c.kind.object, builder.WithPredicates(pause.Predicate(), annotated)).
		WatchesRawSource(c.alarms.Source()).
		WithOptions(queue.Options(workers))
	if !c.kind.onOff {
		b = b.Watches(&autoscalingv2.HorizontalPodAutoscaler{}, handler.EnqueueRequestsFromMapFunc(c.targetOf),
			builder.WithPredicates(retargeted))
	}
	return b.Complete(c)
}

// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile carries out the last start or stop of a workload, unless it was handled before.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	o := c.kind.object.DeepCopyObject().(client.Object)
	err := c.client.Get(ctx, request.NamespacedName, o, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !hasSchedule(o):
		c.warnings.forget(request.NamespacedName)
		c.alarms.Set(request, time.Time{})
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case pause.IsPaused(o) || c.kind.leaveAlone(o):
		return reconcile.Result{}, nil
	}
	c.alarms.Set(request, time.Time{}) // only a valid schedule has a next event
	annotations := o.GetAnnotations()
	if schedule.IsUnscheduled(annotations) && schedule.HasRecord(annotations) {
		return reconcile.Result{}, c.act(ctx, o, c.kind.remove(o))
	}
	s, problems := c.kind.parse(o, c.zone)
	if len(problems) > 0 {
		reason, note := schedule.Explain(problems)
		c.warn(o, reason, "Parse", note)
		return reconcile.Result{}, nil // a user must fix them, and that change causes a reconcile
	}
	autoscalers, err := c.autoscalersOf(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	conflict := conflict(s, autoscalers)
	c.warn(o, v1beta1.EventAutoscalerConflict, "Stop", conflict)
	p := c.kind.decide(o, s, conflict != "", c.clock.Now())
	c.wakeUp(request, p.next)
	return reconcile.Result{}, c.act(ctx, o, p)
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
func (c *Controller) act(ctx context.Context, o client.Object, p plan) error {
	if p.outcome == nothing {
		return nil
	}
	_, err := patch.Object(ctx, c.client, o, func(o client.Object) { c.kind.apply(o, p) })
	switch {
	case err == nil:
		c.warnings.succeeded(o)
		c.announce(o, p)
	case apierrors.IsNotFound(err):
		return nil
	case !apierrors.IsConflict(err) && errors.As(err, new(apierrors.APIStatus)): // the API server answered
		c.metrics.count(c.kind, p.transition, failed)
		if c.warnings.isFirstFailure(o, p.due) {
			c.events.Warning(o, v1beta1.EventScaleFailed, "Scale", "%s: %s", p.attempt(), err)
		}
	}
	return err
}

// attempt describes the change that failed.
func (p plan) attempt() string {
	switch {
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
			"%s: the schedule that had stopped it is gone", change)
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

// warn emits an event for a new warning. An empty warning means that there is none any more.
func (c *Controller) warn(o client.Object, reason, action, warning string) {
	if c.warnings.isNew(o, warning) {
		c.events.Warning(o, reason, action, "%s", warning)
	}
}

// warnings remembers the last warnings about each workload, so that each one is emitted once. A restart repeats them.
type warnings struct {
	mu        sync.Mutex
	workloads map[types.NamespacedName]warned
}

type warned struct {
	uid     types.UID // of the workload
	warning string    // the last one
	failed  time.Time // the due time of the start or stop that failed last; zero for none
}

func newWarnings() *warnings { return &warnings{workloads: map[types.NamespacedName]warned{}} }

// change applies a function to the remembered warnings of a workload.
func (w *warnings) change(o client.Object, change func(*warned)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	known := w.workloads[key]
	if known.uid != o.GetUID() { // a new workload of the same name
		known = warned{uid: o.GetUID()}
	}
	change(&known)
	w.workloads[key] = known
}

// isNew remembers a warning, and reports whether it differs from the last one and is not empty.
func (w *warnings) isNew(o client.Object, warning string) (isNew bool) {
	w.change(o, func(known *warned) { isNew, known.warning = warning != "" && warning != known.warning, warning })
	return isNew
}

// isFirstFailure remembers that the start or stop with a due time has failed, and reports whether this is its first
// failure.
func (w *warnings) isFirstFailure(o client.Object, due time.Time) (first bool) {
	w.change(o, func(known *warned) { first, known.failed = !known.failed.Equal(due), due })
	return first
}

// succeeded forgets the last failure.
func (w *warnings) succeeded(o client.Object) {
	w.change(o, func(known *warned) { known.failed = time.Time{} })
}

// forget drops the warnings of a workload that does not exist any more.
func (w *warnings) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.workloads, key)
}
