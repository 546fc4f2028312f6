// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine keeps Machines useless: each has as many switches as it asks for, and whichever of them is turned
// up is turned down again when its time has come.
//
// What to do follows from the Machine, its switches and the time alone (decide.go); doing it (act.go) and describing
// the result (status.go) are separate. No step relies on an earlier one having been seen: a reconciler that is stopped
// anywhere and started again decides anew from what is there.
package machine

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/object"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "machine"

	// Events of what was done are bounded in each namespace: the API server takes some hundred writes a second, and events
	// are to be about a hundredth of them. Where less is going on, all are told.
	eventsPerSecond = 2
	eventsBurst     = 50

	// Names of the indexes on the informers' stores.
	switchesByOwner   = "useless/owner"
	machinesSelecting = "useless/selecting"
)

// A Controller reconciles Machines.
type Controller struct {
	client   client.Client
	reader   client.Reader // reads from the API server, where the cache may be too old
	switches toolscache.Indexer
	machines toolscache.Indexer
	clock    clock.PassiveClock
	events   *object.Events
	metrics  *metrics
	recent   *recent
	alarms   *alarms
	slots    slots // of requests that create and delete, whichever Machine they are for
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
	switches, err := object.Store(ctx, mgr.GetCache(), &v1beta1.Switch{}, toolscache.Indexers{switchesByOwner: indexByOwner})
	if err != nil {
		return err
	}
	machines, err := object.Store(ctx, mgr.GetCache(), &v1beta1.Machine{}, toolscache.Indexers{machinesSelecting: indexSelecting})
	if err != nil {
		return err
	}
	metrics, err := newMetrics(registerer, machines)
	if err != nil {
		return err
	}
	c := &Controller{
		client:   mgr.GetClient(),
		reader:   mgr.GetAPIReader(),
		switches: switches,
		machines: machines,
		clock:    clock,
		events:   object.NewEvents(mgr).Within(object.NewBudget(eventsPerSecond, eventsBurst, clock), metrics.dropped),
		metrics:  metrics,
		recent:   newRecent(),
		alarms:   newAlarms(clock),
		slots:    make(slots, maxConcurrent),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		Watches(&v1beta1.Machine{}, waking(itself), builder.WithPredicates(object.NotPaused())).
		Watches(&v1beta1.Switch{}, waking(c.machinesOf)).
		WatchesRawSource(source.Func(c.alarms.start)).
		WithOptions(object.Options(options.ConcurrentSyncs)).
		Complete(c)
}

// +kubebuilder:rbac:groups=useless.container.training,resources=machines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=useless.container.training,resources=machines/status,verbs=patch
// +kubebuilder:rbac:groups=useless.container.training,resources=machines/finalizers,verbs=update
// +kubebuilder:rbac:groups=useless.container.training,resources=switches,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=useless.container.training,resources=switches/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings a Machine and its switches one step closer to what it asks for, and asks to be called again when
// the next switch is due. An error means that something was not done; it is tried again with growing delays.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	cached, exists, err := c.machines.GetByKey(request.String())
	if err != nil || !exists {
		c.recent.forget(request.NamespacedName)
		c.alarms.set(request, time.Time{})
		return reconcile.Result{}, err
	}
	m := c.recent.latest(cached.(*v1beta1.Machine))
	if !m.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, c.finalize(ctx, m)
	}
	if object.Paused(m) {
		return reconcile.Result{}, nil
	}
	if m, err = c.ensureFinalizer(ctx, m); err != nil {
		return reconcile.Result{}, object.IgnoreGone(err)
	}
	selector, err := m.SwitchSelector()
	if err != nil {
		// Only its user can mend it, and doing so wakes us.
		return reconcile.Result{}, c.writeStatus(ctx, m, invalidSelectorStatus(m, err, c.clock.Now()))
	}
	switches, err := c.read(m)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := decide(m, selector, switches, c.recent.flipping(m), c.clock.Now())
	c.alarms.set(request, p.next)
	c.recent.sawFlip(m, p.lastFlip)
	m, lowerErr := c.lower(ctx, m, p)
	mine, done, actErr := c.act(ctx, m, p, switches)
	if done.unfinished {
		// The rest has time until the event of what was done brings us back, which is behind whatever else is urgent.
		return reconcile.Result{}, nil
	}
	statusErr := c.writeStatus(ctx, m, newStatus(m, selector.String(), mine, done, c.clock.Now()))
	return reconcile.Result{}, errors.Join(lowerErr, actErr, statusErr)
}

// read returns the switches that the Machine controls and those of its namespace that nobody controls. They are the
// cache's own objects, not copies.
func (c *Controller) read(m *v1beta1.Machine) ([]*v1beta1.Switch, error) {
	// Asked for first: the version may lag behind the list, never the list behind the version.
	seen := c.switches.LastStoreSyncResourceVersion()
	// Orphans first: one that is adopted between the two questions is then in both answers, not in neither.
	orphans, err := c.switches.ByIndex(switchesByOwner, ownerKey(m.Namespace, noOwner))
	if err != nil {
		return nil, err
	}
	own, err := c.switches.ByIndex(switchesByOwner, ownerKey(m.Namespace, m.UID))
	if err != nil {
		return nil, err
	}
	cached := make([]*v1beta1.Switch, 0, len(own)+len(orphans))
	for _, objects := range [][]any{own, orphans} {
		for _, object := range objects {
			cached = append(cached, object.(*v1beta1.Switch))
		}
	}
	return c.recent.overlay(m, cached, seen), nil
}

// ensureFinalizer puts the finalizer on before there is anything to finalize. It returns the Machine as it is then.
func (c *Controller) ensureFinalizer(ctx context.Context, m *v1beta1.Machine) (*v1beta1.Machine, error) {
	written, err := object.EnsureFinalizer(ctx, c.client, m, v1beta1.MachineFinalizer)
	return written, c.remember(ctx, m, written, err)
}

// lower sets the Machine's position back to down, once all that it asked for has come and gone. It returns the Machine
// as it is then. Where that is refused, the rest is done all the same.
func (c *Controller) lower(ctx context.Context, m *v1beta1.Machine, p plan) (*v1beta1.Machine, error) {
	if !p.lower {
		return m, nil
	}
	written, err := object.Patch(ctx, c.client, m, func(m *v1beta1.Machine) { m.Spec.Position = v1beta1.PositionDown })
	if err := c.remember(ctx, m, written, err); err != nil {
		return m, object.IgnoreGone(err)
	}
	return written, nil
}

// writeStatus writes the status if it says anything new, and the events that the change is worth.
func (c *Controller) writeStatus(ctx context.Context, m *v1beta1.Machine, status v1beta1.MachineStatus) error {
	written, err := object.PatchStatus(ctx, c.client, m, func(m *v1beta1.Machine) *v1beta1.MachineStatus { return &m.Status }, &status)
	if err := c.remember(ctx, m, written, err); err != nil {
		return object.IgnoreGone(err)
	}
	if reason := scaledReason(written); reason == v1beta1.ReasonQuotaExceeded && reason != scaledReason(m) {
		c.events.Warn(m, v1beta1.ReasonQuotaExceeded, "Create", "A ResourceQuota refuses more than %d of %d switches", status.Switches.Total, wanted(m))
	}
	return nil
}

// remember keeps what a request has made of a Machine until the cache shows it. One that is refused because the Machine has
// changed or gone tells that the cache is behind, and what was decided on it would be wrong again.
func (c *Controller) remember(ctx context.Context, read, written *v1beta1.Machine, err error) error {
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		if _, looking := c.look(ctx, read); looking != nil {
			return looking
		}
	case err == nil && written != read:
		c.recent.wrote(written)
	}
	return err
}

// noOwner stands for the owner of switches that have none.
const noOwner types.UID = ""

// indexByOwner indexes switches by their namespace and the UID of their controller: an owner is in the same namespace,
// whatever an ownerReference says.
func indexByOwner(object any) ([]string, error) {
	sw := object.(*v1beta1.Switch)
	if owner := metav1.GetControllerOfNoCopy(sw); owner != nil {
		return []string{ownerKey(sw.Namespace, owner.UID)}, nil
	}
	return []string{ownerKey(sw.Namespace, noOwner)}, nil
}

func ownerKey(namespace string, uid types.UID) string { return namespace + "/" + string(uid) }
