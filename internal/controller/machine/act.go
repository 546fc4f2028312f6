// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
)

const (
	// maxConcurrent bounds the concurrent requests for one Machine, and the concurrent creations and deletions for all
	// Machines. An API server handles a few hundred requests of one client at a time. A higher number would delay
	// flips.
	maxConcurrent = 64

	// refusedFlipRetry is the delay until the controller retries a refused flip. It must be less than
	// v1beta1.MaxClockSkew, because the controller ignores times that are further in the future.
	refusedFlipRetry = 5 * time.Second
)

// outcome is the result of the method act.
type outcome struct {
	stale   bool  // the objects that were read are outdated, so a later reconcile usually writes the status
	urgent  bool  // the plan was urgent, so no Switch was created or deleted
	scaling error // why Switches could not be created, deleted, adopted or released
	raised  bool  // each request to turn a Switch up has succeeded or was refused
}

// act executes a plan. An urgent plan only turns Switches down and sets seenAt. A failed step does not prevent the
// other steps, with two exceptions. If a Switch was not released, no Switch is created. If isUnchanged returns false or
// an error, no step is executed.
func (c *Controller) act(ctx context.Context, m *v1beta1.Machine, p plan) (outcome, error) {
	a := &action{Controller: c, machine: m}
	defer a.keepWritten()
	if p.isUrgent() {
		err := errors.Join(a.flip(ctx, p.flip), a.notice(ctx, p.notice, microTime(c.clock.Now())))
		return outcome{stale: a.wrote(), urgent: true}, err
	}
	missing := a.missing(p)
	if p.confirm {
		if same, err := c.isUnchanged(ctx, m); !same || err != nil {
			return outcome{stale: true}, err // a watch event causes another reconcile, unless the Machine is paused
		}
	}
	released := a.release(ctx, p.release)
	if released != nil {
		missing = nil // a Switch that was not released still belongs to the Machine
	}
	scaling := errors.Join(released, a.adopt(ctx, p.adopt), a.create(ctx, missing), a.delete(ctx, p.surplus))
	raising := a.raise(ctx, p.raise)
	if p.raising && raising == nil {
		c.lowered.Forget(client.ObjectKeyFromObject(m))
	}
	err := errors.Join(scaling, raising, a.lower(ctx, p.lower))
	return outcome{stale: a.wrote(), scaling: scaling, raised: raising == nil}, err
}

// action records the writes of act or powerDown.
type action struct {
	*Controller
	machine *v1beta1.Machine

	mu      sync.Mutex
	written []client.ObjectKey // the Switches that were changed
	lowered bool               // the Machine's position was set back to down
}

// changed records a write of a Switch.
func (a *action) changed(sw *v1beta1.Switch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.written = append(a.written, client.ObjectKeyFromObject(sw))
}

func (a *action) wrote() bool { return a.lowered || len(a.written) > 0 }

// keepWritten keeps the written Switches for the next reconcile, see settle.
func (a *action) keepWritten() { a.unsettled.Keep(a.machine, ownWrites{keys: a.written}) }

// release removes the Machine from the owners of Switches that no longer match its selector.
func (a *action) release(ctx context.Context, switches []*v1beta1.Switch) error {
	return forEach(switches, func(sw *v1beta1.Switch) error {
		return a.patch(ctx, sw, func(sw *v1beta1.Switch) {
			sw.OwnerReferences = slices.DeleteFunc(sw.OwnerReferences, func(ref metav1.OwnerReference) bool {
				return ref.UID == a.machine.UID
			})
		}, func() {
			a.events.Normal(a.machine, sw, v1beta1.EventReleased, "Release",
				"Released switch %s, which no longer matches", sw.Name)
		})
	})
}

// adopt makes the Machine the controller of Switches that match its selector and have no controller.
func (a *action) adopt(ctx context.Context, switches []*v1beta1.Switch) error {
	return forEach(switches, func(sw *v1beta1.Switch) error {
		return a.patch(ctx, sw, func(sw *v1beta1.Switch) {
			sw.OwnerReferences = append(sw.OwnerReferences, controllerRef(a.machine))
		}, func() {
			a.events.Normal(a.machine, sw, v1beta1.EventAdopted, "Adopt", "Adopted switch %s", sw.Name)
		})
	})
}

// missing returns the Switches to create. It must run before the adoptions: later, it would return the names of adopted
// Switches. The cache may already have a Switch of this Machine that the plan lacks. In that case, missing returns the
// name of that Switch on purpose: the API server rejects the duplicate. Another name would create an extra Switch.
func (a *action) missing(p plan) []*v1beta1.Switch {
	if p.create == 0 {
		return nil
	}
	known := sets.New[string]()
	for _, sw := range p.mine {
		known.Insert(sw.Name)
	}
	name := names(a.machine, func(name string) bool {
		cached, exists, err := a.switches.GetByKey(a.machine.Namespace + "/" + name)
		if err != nil || !exists || known.Has(name) {
			return known.Has(name)
		}
		sw := cached.(*v1beta1.Switch)
		return !metav1.IsControlledBy(sw, a.machine) || !sw.DeletionTimestamp.IsZero()
	})
	missing := make([]*v1beta1.Switch, p.create)
	for i := range missing {
		missing[i] = newSwitch(a.machine, name())
	}
	return missing
}

// create creates Switches, in batches that double while they succeed (1, 2, 4, …). If the API server refuses all
// requests, for example because of a quota, the controller sends only one request.
func (a *action) create(ctx context.Context, missing []*v1beta1.Switch) (err error) {
	before := len(a.written)
	for next, size := 0, 1; next < len(missing) && err == nil; size = min(2*size, maxConcurrent) {
		batch := missing[next:min(next+size, len(missing))]
		next += len(batch)
		err = forEach(batch, func(sw *v1beta1.Switch) error {
			return a.limited(ctx, sw, func() error { return a.client.Create(ctx, sw) })
		})
	}
	if n := len(a.written) - before; n > 0 {
		a.events.Normal(a.machine, missing[0], v1beta1.EventScaled, "Create", "Created %d %s", n, plural(n))
	}
	// In a namespace that is being deleted, nothing can be created, and no retry helps.
	if err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return fmt.Errorf("create switches: %w", err)
	}
	return nil
}

// delete deletes surplus Switches, unless they have changed since they were read. For example, a user may just have
// removed the label of a Switch to keep it.
func (a *action) delete(ctx context.Context, switches []*v1beta1.Switch) error {
	before := len(a.written)
	err := forEach(switches, func(sw *v1beta1.Switch) error {
		err := a.limited(ctx, sw, func() error {
			return a.client.Delete(ctx, sw, client.Preconditions{UID: &sw.UID, ResourceVersion: &sw.ResourceVersion})
		})
		if apierror.IgnoreGone(err) != nil {
			return fmt.Errorf("delete switch %s: %w", sw.Name, err)
		}
		return nil
	})
	if n := len(a.written) - before; n > 0 {
		a.events.Normal(a.machine, switches[0], v1beta1.EventScaled, "Delete", "Deleted %d %s", n, plural(n))
	}
	return err
}

// limited creates or deletes a Switch. It waits while maxConcurrent such requests are in progress for all Machines.
func (a *action) limited(ctx context.Context, sw *v1beta1.Switch, request func() error) error {
	if err := a.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer a.slots.Release(1)
	if err := request(); err != nil {
		return err
	}
	a.changed(sw)
	return nil
}

// raise turns Switches up because the Machine's position is up. A refusal, for example by an admission policy, is not
// an error: the Switch stays down. If it were an error, the other Switches would stay up until a retry succeeds.
func (a *action) raise(ctx context.Context, switches []*v1beta1.Switch) error {
	before, left := len(a.written), atomic.Int32{}
	err := forEach(switches, func(sw *v1beta1.Switch) error {
		err := a.patch(ctx, sw, func(sw *v1beta1.Switch) { sw.Spec.Position = v1beta1.PositionUp }, func() {})
		if apierror.IsRefused(err) {
			left.Add(1)
			log.FromContext(ctx).Info("Cannot turn a switch up", "switch", sw.Name, "reason", err.Error())
			return nil
		}
		return err
	})
	if n := len(a.written) - before; n > 0 {
		a.events.Normal(a.machine, nil, v1beta1.EventRaised, "Raise",
			"Turned %d %s up, because spec.position is up", n, plural(n))
	}
	if n := int(left.Load()); n > 0 {
		a.events.Warning(a.machine, v1beta1.EventRaised, "Raise",
			"Could not turn %d %s up: the API server rejected the requests", n, plural(n))
	}
	return err
}

// lower sets the Machine's position back to down.
func (a *action) lower(ctx context.Context, lower bool) error {
	if !lower {
		return nil
	}
	_, err := patch.Object(ctx, a.client, a.machine, func(m *v1beta1.Machine) {
		m.Spec.Position = v1beta1.PositionDown
	})
	if a.lowered = err == nil; a.lowered {
		a.Controller.lowered.Keep(a.machine, true)
	}
	return apierror.IgnoreGone(err)
}

// notice sets seenAt in the status of Switches: the time at which the operator noticed that they are up. No step
// removes seenAt when a Switch is down again: the generation of the Switch shows that seenAt is outdated.
func (a *action) notice(ctx context.Context, switches []*v1beta1.Switch, seen *metav1.MicroTime) error {
	field := func(sw *v1beta1.Switch) *v1beta1.SwitchStatus { return &sw.Status }
	return forEach(switches, func(sw *v1beta1.Switch) error {
		status := v1beta1.SwitchStatus{ObservedGeneration: sw.Generation, SeenAt: seen}
		if _, err := patch.Status(ctx, a.client, sw, field, &status); err != nil {
			return apierror.IgnoreGone(err)
		}
		a.changed(sw)
		return nil
	})
}

// flip turns Switches down. It remembers the time of the response, and the next interval begins at that time. The time
// in the annotation of the Switch is a little earlier, because flip sets it before the request.
func (a *action) flip(ctx context.Context, due []dueSwitch) error {
	return forEach(due, func(d dueSwitch) error {
		err := a.turnDown(ctx, d.sw, func() {
			a.flipped.Keep(a.machine, a.clock.Now())
			a.metrics.lateness.Observe(a.clock.Since(d.due).Seconds())
			a.events.Normal(a.machine, d.sw, v1beta1.EventFlipped, "Flip", "Turned switch %s down", d.sw.Name)
		})
		switch {
		case apierror.IsRefused(err):
			// Change seenAt so that this Switch is due again after refusedFlipRetry. The other Switches do not wait for
			// this Switch.
			again := a.clock.Now().Add(refusedFlipRetry - seconds(a.machine.Spec.Flip.DelaySeconds))
			return errors.Join(err, a.notice(ctx, []*v1beta1.Switch{d.sw}, microTime(again)))
		case apierror.IsUnanswered(err):
			a.attempted.Keep(a.machine, a.clock.Now())
		}
		return err
	})
}

// turnDown turns a Switch down, and calls the function "then" after a successful write. It writes the position and the
// time in one request. With two requests, a crash could prevent the second request.
func (a *action) turnDown(ctx context.Context, sw *v1beta1.Switch, then func()) error {
	at := microTime(a.clock.Now()).UTC().Format(metav1.RFC3339Micro)
	return a.patch(ctx, sw, func(sw *v1beta1.Switch) {
		sw.Spec.Position = v1beta1.PositionDown
		metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, at)
	}, func() {
		a.metrics.flips.Inc()
		then()
	})
}

// patch changes a Switch, and calls the function "then" after a successful write. It returns a conflict error if the
// Switch has changed since it was read. It returns nil if the Switch does not exist any more.
func (a *action) patch(ctx context.Context, sw *v1beta1.Switch, change func(*v1beta1.Switch), then func()) error {
	if _, err := patch.Object(ctx, a.client, sw, change); err != nil {
		return apierror.IgnoreGone(err)
	}
	a.changed(sw)
	then()
	return nil
}

// finalize turns the Switches of a deleted Machine down and removes the finalizer. The garbage collector deletes the
// Switches. The controller does not wait for that: a wait could delay the deletion of a namespace or an uninstallation.
func (c *Controller) finalize(ctx context.Context, m *v1beta1.Machine) error {
	if !c.finalizer.Holds(m) {
		return nil
	}
	if !pause.IsPaused(m) {
		if err := c.powerDown(ctx, m); err != nil {
			return err
		}
	}
	return patch.RemoveFinalizer(ctx, c.client, m, c.finalizer)
}

// powerDown turns down the Switches that are up. It retries a write only after a conflict. Any other failed write must
// not block the deletion of the Machine.
func (c *Controller) powerDown(ctx context.Context, m *v1beta1.Machine) error {
	up := slices.DeleteFunc(own(m, c.read(m)), func(sw *v1beta1.Switch) bool {
		return pause.IsPaused(sw) || !isUp(sw)
	})
	a := &action{Controller: c, machine: m}
	defer a.keepWritten()
	err := forEach(up, func(sw *v1beta1.Switch) error {
		err := a.turnDown(ctx, sw, func() {})
		if err != nil && !apierrors.IsConflict(err) {
			log.FromContext(ctx).Error(err, "Cannot turn a switch down before the Machine is deleted",
				"switch", sw.Name)
			return nil
		}
		return err
	})
	if n := len(a.written); n > 0 {
		c.events.Normal(m, nil, v1beta1.EventPoweredDown, "PowerDown",
			"Turned %d %s down before the Machine is deleted", n, plural(n))
	}
	return err
}

// newSwitch returns a Switch with the labels and annotations of the Machine's template.
func newSwitch(m *v1beta1.Machine, name string) *v1beta1.Switch {
	return &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       m.Namespace,
			Name:            name,
			Labels:          m.SwitchLabels(),
			Annotations:     maps.Clone(m.Spec.Switches.Template.Metadata.Annotations),
			OwnerReferences: []metav1.OwnerReference{controllerRef(m)},
		},
		Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	}
}

func controllerRef(m *v1beta1.Machine) metav1.OwnerReference {
	return *metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind("Machine"))
}

// forEach calls a function for each item, up to maxConcurrent at the same time. An error does not stop the other calls.
// The result is the first error in the order of the items.
func forEach[T any](items []T, do func(T) error) error {
	errs := make([]error, len(items))
	workqueue.ParallelizeUntil(context.Background(), maxConcurrent, len(items), func(i int) { errs[i] = do(items[i]) })
	return cmp.Or(errs...)
}

func plural(n int) string {
	if n == 1 {
		return "switch"
	}
	return "switches"
}
