// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine is the controller of Machines. It creates and deletes Switches until each Machine has the number in
// its spec. If a user turns a Switch up, the controller turns it back down when it is due.
//
// decide.go has no side effects: it computes a plan from the Machine, its Switches and the time. act.go executes the
// plan, and status.go describes the result. A reconcile needs no state of an earlier reconcile: after a crash, the next
// one computes a new plan from the objects. The exceptions are the fields of Controller with the type Memory, and
// finalizer.
package machine

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/events"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/memory"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/queue"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "machine"

	// DefaultConcurrentSyncs is the default number of Machines that are reconciled at the same time.
	DefaultConcurrentSyncs = 16

	maxConcurrentSyncs = 256

	// statusDelay is how long the status of a Machine waits behind due flips. A user hardly notices this delay. Several
	// changes in this time need one write.
	statusDelay = 500 * time.Millisecond

	// An API server handles several hundred writes per second. The Normal events of one namespace may need about one
	// percent of them.
	eventsPerSecond = 2
	eventsBurst     = 50
)

// Options configure the controller.
type Options struct {
	// ConcurrentSyncs is the number of Machines that are reconciled at the same time, from 1 to 256.
	// Zero means DefaultConcurrentSyncs.
	ConcurrentSyncs int
}

// AddFlags adds the controller's flags.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.IntVar(&o.ConcurrentSyncs, "concurrent-machine-syncs", DefaultConcurrentSyncs,
		"the number of Machines that are reconciled concurrently, from 1 to 256")
}

// Validate returns an error for a value that is out of range.
func (o Options) Validate() error {
	if o.ConcurrentSyncs < 0 || o.ConcurrentSyncs > maxConcurrentSyncs {
		return fmt.Errorf("invalid value %d for flag --concurrent-machine-syncs: must be from 1 to %d",
			o.ConcurrentSyncs, maxConcurrentSyncs)
	}
	return nil
}

// Controller reconciles Machines.
type Controller struct {
	client    client.Client // its reads see the operator's own writes
	reader    client.Reader // reads from the API server
	switches  toolscache.Indexer
	machines  toolscache.Indexer
	clock     clock.PassiveClock
	events    *events.Recorder
	metrics   *metrics
	finalizer *patch.Finalizer
	alarms    *queue.Alarms       // fire when flips are due
	statuses  *queue.Alarms       // fire when statuses have waited for statusDelay
	slots     *semaphore.Weighted // bounds the concurrent creations and deletions of Switches

	// flipped has the time of each Machine's last flip. attempted has the time of each Machine's last flip with an
	// unknown result. In two cases, the objects may lack these times: a user deletes the Switch before the controller
	// writes the Machine's status, or the result is unknown. A restart clears both fields. In these two cases, the
	// first flip after a restart may be too early.
	flipped, attempted memory.Memory[time.Time]

	// lowered has the Machines whose position was set back to down, while their status still has the position up. If a
	// user sets the position to up in this time, it is a new request. A restart clears this field. If the user's
	// request came before the restart, the operator sets the position back to down without executing the request.
	lowered memory.Memory[bool]

	// unsettled has the Switches that the last reconcile of each Machine wrote, see settle. A restart clears it, and
	// fills the cache with current data.
	unsettled memory.Memory[ownWrites]

	// outdated has the time since which the status of each Machine waits, because plans were urgent. See updateStatus.
	outdated memory.Memory[time.Time]
}

// ownWrites are the operator's own writes of Switches.
type ownWrites struct {
	keys     []client.ObjectKey
	timedOut bool // the cache did not show them in time
}

// CacheOptions returns options that remove unused fields from cached Machines and Switches.
func (Options) CacheOptions() map[client.Object]cache.ByObject {
	transform := newTransform()
	return map[client.Object]cache.ByObject{
		&v1beta1.Machine{}: {Transform: transform},
		&v1beta1.Switch{}:  {Transform: transform},
	}
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	switches, err := informer.Store(ctx, mgr.GetCache(), &v1beta1.Switch{}, switchIndexers)
	if err != nil {
		return err
	}
	machines, err := informer.Store(ctx, mgr.GetCache(), &v1beta1.Machine{}, machineIndexers)
	if err != nil {
		return err
	}
	metrics := newMetrics(registerer, machines)
	c := &Controller{
		client:    mgr.GetClient(),
		reader:    mgr.GetAPIReader(),
		switches:  switches,
		machines:  machines,
		clock:     clock,
		events:    events.NewRecorder(mgr).WithLimit(eventsPerSecond, eventsBurst, clock, metrics.dropped),
		metrics:   metrics,
		finalizer: &patch.Finalizer{Name: v1beta1.MachineFinalizer},
		alarms:    queue.NewAlarms(clock),
		statuses:  queue.NewAlarms(clock),
		slots:     semaphore.NewWeighted(maxConcurrent),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		Watches(&v1beta1.Machine{}, c.waking(itself), builder.WithPredicates(pause.Predicate())).
		Watches(&v1beta1.Switch{}, c.waking(c.machinesOf)).
		WatchesRawSource(c.alarms.Source()).
		WatchesRawSource(c.statuses.Source()).
		WithOptions(queue.Options(cmp.Or(o.ConcurrentSyncs, DefaultConcurrentSyncs))).
		Complete(c)
}

// +kubebuilder:rbac:groups=useless.container.training,resources=machines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=useless.container.training,resources=machines/status,verbs=patch
// +kubebuilder:rbac:groups=useless.container.training,resources=machines/finalizers,verbs=update
// +kubebuilder:rbac:groups=useless.container.training,resources=switches,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=useless.container.training,resources=switches/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings a Machine and its Switches one step closer to the spec. A reconcile that changed a Switch or
// spec.position usually does not write the status. The watch events of its writes cause another reconcile, which writes
// the status. If nothing can be written, for example because of a quota, the same reconcile writes the reason into the
// status.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	m := &v1beta1.Machine{}
	err := c.client.Get(ctx, request.NamespacedName, m, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		c.finalizer.Forget(request.NamespacedName)
		c.flipped.Forget(request.NamespacedName)
		c.attempted.Forget(request.NamespacedName)
		c.lowered.Forget(request.NamespacedName)
		c.unsettled.Forget(request.NamespacedName)
		c.outdated.Forget(request.NamespacedName)
		c.alarms.Set(request, time.Time{})
		c.statuses.Set(request, time.Time{})
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case m.DeletionTimestamp.IsZero() && pause.IsPaused(m):
		return reconcile.Result{}, nil
	}
	if err := c.settle(ctx, m); err != nil {
		return reconcile.Result{}, err
	}
	if !m.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, c.finalize(ctx, m)
	}
	cached := m
	if m, err = patch.AddFinalizer(ctx, c.client, cached, c.finalizer); err != nil {
		return reconcile.Result{}, apierror.IgnoreGone(err)
	}
	fresh := m != cached // AddFinalizer wrote the Machine and returned the API server's answer
	p := decide(m, c.read(m), c.remembered(m), fresh, c.clock.Now())
	c.alarms.Set(request, p.next)
	if p.isUrgent() && c.outdated.Of(m).IsZero() { // the watch events of act may arrive before act returns
		c.outdated.Keep(m, c.clock.Now())
	}
	done, actErr := c.act(ctx, m, p)
	return reconcile.Result{}, errors.Join(actErr, c.updateStatus(ctx, m, p, done))
}

// remembered returns what the objects do not record.
func (c *Controller) remembered(m *v1beta1.Machine) remembered {
	switch {
	case m.Status.Position != v1beta1.PositionUp:
		c.lowered.Forget(client.ObjectKeyFromObject(m))
	case m.Spec.Position != v1beta1.PositionUp: // by a user, or by a request whose answer was lost
		c.lowered.Keep(m, true)
	}
	return remembered{c.flipped.Of(m), c.attempted.Of(m), c.lowered.Of(m)}
}

// read returns the Switches that the Machine controls. It also returns the orphans (Switches without a controller) in
// its namespace that may match its selector. All results belong to the cache and must not be changed.
func (c *Controller) read(m *v1beta1.Machine) []*v1beta1.Switch {
	// Read orphans first. A Switch that is adopted between the two reads is then in both results. In the other order,
	// the Switch could be in neither result.
	orphans := byIndex[*v1beta1.Switch](c.switches, orphansByLabel, selectorKey(m))
	return append(byIndex[*v1beta1.Switch](c.switches, switchesByOwner, ownerKey(m.Namespace, m.UID)), orphans...)
}

// settle waits until the cache shows the Switches that the previous reconcile wrote, because the method read uses the
// index. Otherwise, a plan could create or delete one Switch too many. Usually, settle does not wait long, because the
// watch events of these writes cause this reconcile. If a Switch was deleted meanwhile, the watch may never send the
// event of the write. The wait then times out, and the next reconcile calls confirmCached.
func (c *Controller) settle(ctx context.Context, m *v1beta1.Machine) error {
	writes, check := c.unsettled.Of(m), c.awaitCached
	if writes.timedOut {
		check = c.confirmCached
	}
	for i, key := range writes.keys {
		if err := check(ctx, key); err != nil {
			c.unsettled.Keep(m, ownWrites{writes.keys[i:], true})
			return err
		}
	}
	c.unsettled.Forget(client.ObjectKeyFromObject(m))
	return nil
}

// awaitCached waits until the cache shows the operator's own writes of a Switch. A List would also wait for the writes
// of all other Machines.
func (c *Controller) awaitCached(ctx context.Context, key client.ObjectKey) error {
	return client.IgnoreNotFound(c.client.Get(ctx, key, &v1beta1.Switch{}, client.UnsafeDisableDeepCopy))
}

// confirmCached returns an error if the cache has an older state of a Switch than the API server.
func (c *Controller) confirmCached(ctx context.Context, key client.ObjectKey) error {
	current := &v1beta1.SwitchList{} // the operator has no permission to get a Switch
	err := c.reader.List(ctx, current, client.InNamespace(key.Namespace),
		client.MatchingFields{metav1.ObjectNameField: key.Name})
	if err != nil {
		return err
	}
	cached, exists, err := c.switches.GetByKey(key.String())
	if err != nil {
		return err
	}
	if !exists && len(current.Items) == 0 {
		return nil
	}
	if exists && len(current.Items) > 0 {
		order, err := resourceversion.CompareResourceVersion(
			cached.(*v1beta1.Switch).ResourceVersion, current.Items[0].ResourceVersion)
		if err != nil || order >= 0 {
			return err
		}
	}
	return fmt.Errorf("the cache does not show the last change of switch %s yet", key.Name)
}

// isUnchanged reads the Machine from the API server. It returns false if the spec has changed, or if the Machine is
// deleted or paused. A deletion also changes the generation. The controller calls isUnchanged before it adopts, creates
// or deletes Switches, because the cache of Machines can be older than the cache of Switches. With an old count, it
// would delete Switches that the spec needs. A user can delete a Machine and keep its Switches (--cascade=orphan). The
// deleted Machine must not adopt these Switches again; ReplicaSets have the same rule. It must also not replace the
// Switches that the garbage collector deletes.
func (c *Controller) isUnchanged(ctx context.Context, m *v1beta1.Machine) (bool, error) {
	current := &v1beta1.Machine{}
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(m), current); err != nil {
		return false, apierror.IgnoreGone(err)
	}
	return current.UID == m.UID && current.Generation == m.Generation && !pause.IsPaused(current), nil
}

// updateStatus writes the status, unless it may wait. A reconcile that wrote Switches does not write the status. The
// watch events of its writes cause another reconcile, which does. While the plans of all these reconciles are urgent,
// none of them would write it. So an urgent plan writes it at the end of statusDelay. Such a status describes the
// Switches before the plan.
func (c *Controller) updateStatus(ctx context.Context, m *v1beta1.Machine, p plan, done outcome) error {
	now := c.clock.Now()
	if done.stale && (!done.urgent || now.Sub(c.outdated.Of(m)) < statusDelay) {
		return nil
	}
	if err := c.writeStatus(ctx, m, newStatus(m, p, done, now)); err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(m)
	c.outdated.Forget(key)
	c.statuses.Set(reconcile.Request{NamespacedName: key}, time.Time{})
	if done.stale {
		c.outdated.Keep(m, now)
	}
	return nil
}

// hurryStatus sets the alarm of a status that waits. Until the alarm fires, it waits behind the due flips of all
// Machines. Event handlers call hurryStatus, because the cache then has the writes that the reconcile waits for.
func (c *Controller) hurryStatus(request reconcile.Request) {
	m, exists, err := c.machines.GetByKey(request.String())
	if err != nil || !exists {
		return
	}
	if since := c.outdated.Of(m.(*v1beta1.Machine)); !since.IsZero() {
		c.statuses.Set(request, since.Add(statusDelay))
	}
}

// writeStatus writes the status if it has changed, and emits an event if a ResourceQuota now rejects Switches.
func (c *Controller) writeStatus(ctx context.Context, m *v1beta1.Machine, status v1beta1.MachineStatus) error {
	field := func(m *v1beta1.Machine) *v1beta1.MachineStatus { return &m.Status }
	written, err := patch.Status(ctx, c.client, m, field, &status)
	if err != nil {
		return apierror.IgnoreGone(err)
	}
	if reason := scaledReason(written); reason == v1beta1.ReasonQuotaExceeded && reason != scaledReason(m) {
		c.events.Warning(m, reason, "Create",
			"A ResourceQuota rejects further switches: %d of %d exist", status.Switches.Total, wanted(m))
	}
	return nil
}
