// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule stops and starts workloads at the times in their annotations.
//
// One controller runs for each kind of workload, see kind.go. An event of a schedule is a start or a stop. The package
// internal/schedule computes when events are due. The code in decide.go decides what to write, and has no side effects.
// The controller handles only the last event, and handles it only once. So the operator catches up on a missed event,
// and does not undo a user's change before the next event. The operator records each event in annotations of the
// workload, in the same request as the change.
package schedule

import (
	"bytes"
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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

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

	workers = 16 // concurrent reconciles of each kind
)

// Options configure the controller.
type Options struct {
	// Kinds are the names of the kinds of workloads that schedules apply to. Empty means all kinds.
	Kinds []string
	// DefaultTimeZone is the IANA time zone of schedules without a time zone. Empty means UTC.
	DefaultTimeZone string
	// DryRun means that the controller only emits events about starts and stops.
	DryRun bool
	// OwnNamespace is the operator's namespace, which cannot have a default schedule. Empty means that it is not known.
	OwnNamespace string
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
	flags.BoolVar(&o.DryRun, "schedule-dry-run", false,
		"emit events about starts and stops, but do not change workloads")
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

// CacheOptions returns options that trim Namespaces, HorizontalPodAutoscalers, and the kinds of workloads with a
// function trim.
func (o Options) CacheOptions() map[client.Object]cache.ByObject {
	options := map[client.Object]cache.ByObject{&corev1.Namespace{}: {Transform: trimNamespace}}
	enabled, _ := kindsNamed(o.Kinds) // Validate returns the error
	// The controllers of scalable kinds read autoscalers to find conflicts, even if autoscalers are not an enabled
	// kind.
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
	client  client.Client
	clock   clock.PassiveClock
	zone    *time.Location
	events  *events.Recorder
	metrics *metrics
	alarms  *queue.Alarms
	absent  atomic.Bool // true while the API server does not serve the kind; then the cache does not watch it
	// isSynced reports whether the cache has all workloads of the kind; nil if the kind is not optional.
	isSynced func(context.Context) bool

	namespaces *Namespaces
	defaulted  defaulted
	api        client.Reader // reads from the API server
	dryRun     bool
	dryRunEnd  *dryRunEnd
	memory     memory.Memory[remembered]
}

// remembered is the data in memory about a workload. The controller does not emit a warning, a notice or a failure
// again while it is the same as the remembered one. After a restart of the operator, the controller emits it again.
type remembered struct {
	warning warning // of the last plan
	notice  warning // of the last plan
	failure string  // the key of the last failed start or stop
	dryRun  dryRunMemory
	saving  saving
}

// Setup adds a controller for each enabled kind to a manager, and registers the metrics of the controllers.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	zone, zoneErr := o.zone()
	enabled, kindErr := kindsNamed(o.Kinds)
	if err := errors.Join(zoneErr, kindErr, indexAutoscalers(ctx, mgr.GetFieldIndexer(), enabled)); err != nil {
		return err
	}
	dryRunEnd, err := o.setupDryRun(mgr, clock)
	if err != nil {
		return err
	}
	namespaces := &Namespaces{
		client: mgr.GetClient(), api: mgr.GetAPIReader(), zone: zone, events: events.NewRecorder(mgr),
		system: o.system(),
	}
	controllers := make([]*Controller, 0, len(enabled))
	for _, k := range enabled {
		c := &Controller{
			kind:   k,
			client: client.WithFieldOwner(mgr.GetClient(), string(fieldManager)),
			clock:  clock,
			zone:   zone,
			events: events.NewRecorder(mgr),
			alarms: queue.NewAlarms(clock),

			namespaces: namespaces, api: mgr.GetAPIReader(), dryRun: o.DryRun, dryRunEnd: dryRunEnd,
		}
		c.absent.Store(k.isOptional)
		controllers = append(controllers, c)
	}
	metrics := newMetrics(registerer, collector{mgr.GetCache(), controllers})
	for _, c := range controllers {
		c.metrics = metrics
		if err := c.setup(ctx, mgr); err != nil {
			return fmt.Errorf("%s: %w", c.kind.name, err)
		}
	}
	return namespaces.setup(mgr)
}

func (c *Controller) setup(ctx context.Context, mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named(Name+"-"+c.kind.name).
		WatchesRawSource(c.alarms.Source()).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(c.workloadsIn),
			builder.WithPredicates(redefined)).
		WithOptions(queue.Options(workers))
	if c.kind.isOptional {
		running, err := b.Build(c)
		if err != nil {
			return err
		}
		return c.addPresence(mgr, running)
	}
	// Each replica of the operator caches the workloads, so that the next leader does not have to read them first.
	if _, err := mgr.GetCache().GetInformer(ctx, c.kind.object, cache.BlockUntilSynced(false)); err != nil {
		return err
	}
	b = b.For(c.kind.object, builder.WithPredicates(pause.Predicate(), c.scheduled()))
	if c.kind.isScalable {
		b = b.Watches(&autoscalingv2.HorizontalPodAutoscaler{}, handler.EnqueueRequestsFromMapFunc(c.targetOf),
			builder.WithPredicates(retargeted))
	}
	return b.Complete(c)
}

// scheduled accepts the events of workloads that have a schedule, or had one before the event.
func (c *Controller) scheduled() predicate.Predicate {
	funcs := predicate.NewPredicateFuncs(c.mayHaveSchedule)
	funcs.UpdateFunc = func(e event.UpdateEvent) bool {
		return c.mayHaveSchedule(e.ObjectOld) || c.mayHaveSchedule(e.ObjectNew)
	}
	return funcs
}

// mayHaveSchedule reports whether a workload has annotations of a schedule, or its Namespace has a default schedule.
// The result is also true if the last plan of the workload was a dry run. If a user removes the schedule while the
// workload is paused, the controller does not see that change. A reconcile after the pause then ends the dry run.
func (c *Controller) mayHaveSchedule(o client.Object) bool {
	return schedule.HasAny(o.GetAnnotations()) || c.defaulted.has(o.GetNamespace()) ||
		c.memory.Of(o).dryRun.isRunning
}

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=useless-system,resources=leases,resourceNames=schedule-dry-run.useless.container.training,verbs=get;update

// Reconcile executes the last start or stop of a workload, unless it was handled before.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if c.absent.Load() { // the CustomResourceDefinition was removed, and all workloads with it
		c.forget(request)
		return reconcile.Result{}, nil
	}
	o := c.kind.object.DeepCopyObject().(client.Object)
	err := c.client.Get(ctx, request.NamespacedName, o, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		c.forget(request)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	c.addSavings(o)
	if c.kind.leaveAlone(o) {
		// Some changes of such a workload cause no reconcile. So the metrics of saved CPU and memory do not count it.
		c.memory.Update(o, func(r *remembered) { r.saving = saving{} })
		return reconcile.Result{}, nil
	}
	in, err := c.read(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := c.kind.decide(in)
	if p.transition == removal {
		if err := c.namespaces.confirm(ctx, o.GetNamespace(), in.defaults); err != nil {
			return reconcile.Result{}, err
		}
	}
	c.alarms.Set(request, p.wakeUp)
	return reconcile.Result{}, c.act(ctx, o, p)
}

// forget removes everything that the controller knows about a workload that does not exist.
func (c *Controller) forget(request reconcile.Request) {
	c.memory.Forget(request.NamespacedName)
	c.alarms.Set(request, time.Time{})
}

// read returns the input of a decision about a workload.
func (c *Controller) read(ctx context.Context, o client.Object) (in input, err error) {
	in = input{object: o, zone: c.zone, now: c.clock.Now(), dryRun: c.dryRun, lastDryRun: c.memory.Of(o).dryRun}
	if in.dryRunEnd, err = c.dryRunEnd.read(ctx); err != nil {
		return in, err
	}
	if in.defaults, err = c.namespaces.defaults(ctx, o.GetNamespace()); err != nil {
		return in, err
	}
	in.autoscalers, err = c.autoscalersOf(ctx, o)
	return in, err
}

// act executes a plan in one request, and emits its events.
func (c *Controller) act(ctx context.Context, o client.Object, p plan) error {
	c.warn(ctx, o, p)
	if p.isDryRun {
		c.announceDryRun(o, p)
		return nil
	}
	if last := c.memory.Of(o).dryRun; last != (dryRunMemory{}) {
		c.memory.Update(o, func(r *remembered) { r.dryRun = last.after(p, c.clock.Now()) })
	}
	if p.outcome == nothing {
		return nil
	}
	_, err := patch.Object(ctx, c.client, o, func(o client.Object) { c.kind.apply(o, p) })
	switch {
	case err == nil:
		c.memory.Update(o, func(r *remembered) { r.failure = "" })
		c.announce(o, p)
	case apierrors.IsNotFound(err):
		return nil
	case !apierrors.IsConflict(err) && errors.As(err, new(apierrors.APIStatus)): // the API server answered
		c.metrics.count(c.kind, p.transition, failed)
		if failure := p.key(); failure != c.memory.Of(o).failure {
			c.memory.Update(o, func(r *remembered) { r.failure = failure })
			c.events.Warning(o, v1beta1.EventScaleFailed, "Scale", "%s: %s", attempt(o, p), err)
		}
	}
	return err
}

// warn emits the warning and the notice of a plan if they differ from those of the last plan. A zero value causes no
// event.
func (c *Controller) warn(ctx context.Context, o client.Object, p plan) {
	last := c.memory.Of(o)
	if p.warning == last.warning && p.notice == last.notice {
		return
	}
	c.memory.Update(o, func(r *remembered) { r.warning, r.notice = p.warning, p.notice })
	if p.warning != last.warning && p.warning.reason == v1beta1.EventScheduleOverridden {
		p.warning.note += c.author(ctx, o) + ". Nothing happens until the next start or stop"
	}
	if p.warning != last.warning && p.warning != (warning{}) {
		c.events.Warning(o, p.warning.reason, p.warning.action, "%s", p.warning.note)
	}
	if p.notice != last.notice && p.notice != (warning{}) {
		c.events.Warning(o, p.notice.reason, p.notice.action, "%s", p.notice.note)
	}
}

// key identifies the start or stop of a plan.
func (p plan) key() string {
	key := string(p.transition) + p.annotations[p.event.Cause] + p.record.Observed
	// For start-until, Event.At is the time of the reconcile. The key must not change with each reconcile.
	if p.event.Cause != v1beta1.StartUntilAnnotation {
		key += schedule.FormatTime(p.event.At)
	}
	return key
}

// attempt describes the change that failed, such as "Could not stop (stop-schedule "Mon-Fri 20:00", due ...)".
func attempt(o client.Object, p plan) string {
	switch {
	case p.transition == removal && p.outcome != scaled:
		return "Could not remove the annotations of the removed schedule"
	case p.outcome != scaled:
		return "Could not record when the next start or stop is due"
	case p.transition == stop:
		return fmt.Sprintf("Could not stop (%s)", cause(o, p, 0))
	default:
		return fmt.Sprintf("Could not start (%s)", cause(o, p, 0))
	}
}

// announce counts the outcome of a plan, and emits an event about it.
func (c *Controller) announce(o client.Object, p plan) {
	c.metrics.count(c.kind, p.transition, p.outcome)
	late := c.clock.Since(p.event.At)
	if p.fired && (p.outcome == scaled || p.outcome == unchanged) {
		c.metrics.lag.Observe(late.Seconds())
	}
	change := c.kind.describe(p.before, p.level)
	switch {
	case p.transition == removal && p.outcome == scaled:
		c.events.Normal(o, nil, v1beta1.EventScheduleRemoved, "Start",
			"%s: the schedule that stopped the workload is gone", change)
	case p.transition == removal:
		c.events.Normal(o, nil, v1beta1.EventScheduleRemoved, "Forget", "Changed nothing: the schedule is gone")
	case p.outcome != scaled:
	case p.transition == stop:
		c.events.Normal(o, nil, v1beta1.EventScheduledStop, "Stop", "%s (%s)", change, cause(o, p, late))
	default:
		c.events.Normal(o, nil, v1beta1.EventScheduledStart, "Start", "%s (%s)", change, cause(o, p, late))
	}
}

// announceDryRun counts a start or a stop that a dry run does not execute, and emits an event about it. It does this
// once for each start or stop.
func (c *Controller) announceDryRun(o client.Object, p plan) {
	kept := c.memory.Of(o).dryRun
	isNew := p.key() != kept.event && p.outcome == scaled
	if kept.isRunning, kept.end = true, (time.Time{}); isNew {
		kept.event = p.key()
	}
	switch {
	case p.isInvalid: // the simulated state does not change
	case p.transition == "": // there is no schedule
		kept = dryRunMemory{isRunning: true}
	default:
		kept.simulated = simulated{true, schedule.ReadRecord(o.GetAnnotations()), c.kind.level(o), p.level, p.record}
	}
	c.memory.Update(o, func(r *remembered) { r.dryRun = kept })
	if !isNew {
		return
	}
	c.metrics.count(c.kind, p.transition, dryRun)
	change := c.kind.describe(p.before, p.level)
	if p.transition == stop {
		c.events.Normal(o, nil, v1beta1.EventWouldStop, "Stop", "Dry run: %s (%s)", change, cause(o, p, 0))
	} else {
		c.events.Normal(o, nil, v1beta1.EventWouldStart, "Start", "Dry run: %s (%s)", change, cause(o, p, 0))
	}
}

// cause returns "start-schedule "Mon-Fri 07:00" of Namespace dev, due ..., 3h late" for an event.
func cause(o client.Object, p plan, late time.Duration) string {
	if p.transition == removal {
		return "the schedule is gone"
	}
	key := p.event.Cause
	_, name, _ := strings.Cut(key, "/")
	text := fmt.Sprintf("%s %q", name, schedule.Truncate(p.annotations[key]))
	if _, isOwn := o.GetAnnotations()[key]; !isOwn {
		text += " of Namespace " + o.GetNamespace()
	}
	if key == v1beta1.StartUntilAnnotation {
		return text + ", until " + schedule.FormatTime(p.record.ExpiresAt)
	}
	text += ", due " + schedule.FormatTime(p.event.At)
	if p.fired && late > time.Minute {
		text += fmt.Sprintf(", %s late", duration.HumanDuration(late))
	}
	return text
}

// author returns text for an event: the field manager that last changed the level (see kind) of a workload, and the
// time. It returns an empty string if they are not known. The cache has no managed fields, so author reads them from
// the API server.
func (c *Controller) author(ctx context.Context, o client.Object) string {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(c.kind.gvk)
	if err := c.api.List(ctx, list, client.InNamespace(o.GetNamespace()),
		client.MatchingFields{metav1.ObjectNameField: o.GetName()}); err != nil || len(list.Items) == 0 {
		return ""
	}
	entry := lastManager(list.Items[0].ManagedFields, c.kind.field)
	if entry == nil {
		return ""
	}
	at := c.clock.Now() // an entry of the subresource scale has no time, so use the current one
	if entry.Time != nil {
		at = entry.Time.Time
	}
	return fmt.Sprintf(": %s changed it at %s", entry.Manager, schedule.FormatTime(at))
}

// lastManager returns the entry of the last manager that has set a field; nil for none. An entry without a time counts
// as the last one.
func lastManager(entries []metav1.ManagedFieldsEntry, field fieldpath.Path) (last *metav1.ManagedFieldsEntry) {
	for i := range entries {
		entry, set := &entries[i], &fieldpath.Set{}
		if entry.FieldsV1 == nil || set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())) != nil ||
			!set.Has(field) {
			continue
		}
		if last == nil || entry.Time == nil || last.Time != nil && last.Time.Before(entry.Time) {
			last = entry
		}
	}
	return last
}
