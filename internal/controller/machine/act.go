// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/object"
)

const (
	// maxConcurrent bounds how many requests for one Machine are under way at a time, and how many creations and deletions
	// for all of them. An API server serves a few hundred of one client; the rest would have to wait there, and with them
	// what is due.
	maxConcurrent = 64

	// refusedFlipRetry is when a switch that may not be turned down is tried again. It is less than maxClockSkew.
	refusedFlipRetry = 5 * time.Second
)

// act carries out a plan and returns the Machine's switches as they are then. Its steps do not depend on each other,
// so one that fails keeps none of the others back. Flips come first, because nothing else is due at a certain time, and
// then what was turned up is noticed, which its delay counts from. Both come alone: other Machines may wait for the same,
// and one more request of this one's would come before them.
func (c *Controller) act(ctx context.Context, m *v1beta1.Machine, p plan, switches []*v1beta1.Switch) ([]*v1beta1.Switch, outcome, error) {
	done := outcome{carriedOut: p.carriedOut, lastFlip: p.lastFlip}
	if p.empty() {
		return p.mine, done, nil
	}
	flippedAt, flipping := c.flip(ctx, m, p.flip)
	noticing := c.note(ctx, m, p.notice, instant(c.clock.Now()))
	urgent := errors.Join(flipping, noticing)
	if done.unfinished = len(p.flip)+len(p.notice) > 0 && urgent == nil; done.unfinished {
		return nil, done, nil
	}
	done.lastFlip = latest(p.lastFlip, flippedAt)
	forgetting := c.note(ctx, m, p.forget, nil)
	releasing := c.release(ctx, m, p.release)
	if releasing != nil {
		p.create = 0 // what could not be let go is still one of the Machine's
	}
	done.scaling = errors.Join(
		releasing,
		c.adopt(ctx, m, p.adopt),
		c.create(ctx, m, p, names(m, c.taken(m, switches))),
		c.delete(ctx, m, p.surplus),
	)
	raising := c.raise(ctx, m, p.raise)
	done.carriedOut = p.carriedOut && raising == nil
	switches, reading := c.read(m)
	return own(m, switches), done, errors.Join(urgent, forgetting, done.scaling, raising, reading)
}

// taken tells which names are taken, as far as is known: by the given switches, or by others in the cache. Own ones that
// only the cache has were deleted.
func (c *Controller) taken(m *v1beta1.Machine, switches []*v1beta1.Switch) func(name string) bool {
	known := sets.New[string]()
	for _, sw := range switches {
		known.Insert(sw.Name)
	}
	return func(name string) bool {
		cached, exists, err := c.switches.GetByKey(m.Namespace + "/" + name)
		if err != nil || !exists || known.Has(name) {
			return known.Has(name)
		}
		sw := cached.(*v1beta1.Switch)
		return !metav1.IsControlledBy(sw, m) || !sw.DeletionTimestamp.IsZero()
	}
}

// release lets go of switches that no longer match.
func (c *Controller) release(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	return forEach(switches, func(sw *v1beta1.Switch) error {
		return c.patch(ctx, m, sw, func(sw *v1beta1.Switch) {
			sw.OwnerReferences = slices.DeleteFunc(sw.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == m.UID })
		}, func() {
			c.events.Tell(m, sw, v1beta1.EventReleased, "Release", "Released switch %s, which no longer matches", sw.Name)
		})
	})
}

// adopt takes switches that match and have no controller.
func (c *Controller) adopt(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	if len(switches) == 0 {
		return nil
	}
	// As the ReplicaSet controller does: a Machine that was deleted with its switches to be kept must not take them back.
	if current, err := c.look(ctx, m); err != nil || !current.DeletionTimestamp.IsZero() {
		return err
	}
	return forEach(switches, func(sw *v1beta1.Switch) error {
		return c.patch(ctx, m, sw, func(sw *v1beta1.Switch) {
			sw.OwnerReferences = append(sw.OwnerReferences, *metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind("Machine")))
		}, func() {
			c.events.Tell(m, sw, v1beta1.EventAdopted, "Adopt", "Adopted switch %s", sw.Name)
		})
	})
}

// look asks the API server for what has become of a Machine that the cache may be behind with, and remembers it. One that
// is gone is returned as one that nothing keeps from going.
func (c *Controller) look(ctx context.Context, m *v1beta1.Machine) (*v1beta1.Machine, error) {
	current := &v1beta1.Machine{}
	err := c.reader.Get(ctx, key(m), current)
	if err != nil && !object.Gone(err) {
		return nil, fmt.Errorf("look at the Machine: %w", err)
	}
	if current.UID != m.UID {
		current = m.DeepCopy()
		current.DeletionTimestamp, current.Finalizers = new(metav1.NewTime(c.clock.Now())), nil
	}
	c.recent.wrote(current)
	return current, nil
}

// pointless tells whether nothing is worth creating for a Machine that has so many switches. Where there were more, the garbage
// collector may have deleted some, because the Machine is being deleted in the foreground. It would have to delete new ones, too.
func (c *Controller) pointless(ctx context.Context, m *v1beta1.Machine, have int) (bool, error) {
	if int(m.Status.Switches.Total) <= have {
		return false, nil
	}
	current, err := c.look(ctx, m)
	if err != nil {
		return false, err
	}
	return !current.DeletionTimestamp.IsZero() || object.Paused(current) || current.Generation != m.Generation, nil
}

// create makes missing switches, in batches that grow while they succeed (1, 2, 4, …): whatever refuses all of them
// then refuses a few requests, not a thousand. A name that turns out to be taken is passed over.
func (c *Controller) create(ctx context.Context, m *v1beta1.Machine, p plan, name func() string) (err error) {
	missing := p.create
	if missing == 0 {
		return nil
	}
	if pointless, err := c.pointless(ctx, m, len(p.mine)-len(p.release)+len(p.adopt)); pointless || err != nil {
		return err
	}
	var created []*v1beta1.Switch
	for batch := 1; missing > 0 && err == nil; batch = min(2*batch, maxConcurrent) {
		news := make([]*v1beta1.Switch, min(batch, missing))
		for i := range news {
			news[i] = newSwitch(m, name())
		}
		var mu sync.Mutex
		err = forEach(news, c.slots.inTurn(func(sw *v1beta1.Switch) error {
			isNew, isThere, err := c.createOne(ctx, m, sw)
			mu.Lock()
			defer mu.Unlock()
			if isNew {
				created = append(created, sw)
			}
			if isThere {
				missing--
			}
			return err
		}))
	}
	if len(created) > 0 {
		c.events.Tell(m, created[0], v1beta1.EventScaled, "Create", "Created %d %s", len(created), plural(len(created)))
	}
	// In a namespace that is being deleted nothing can be created, nor need it be.
	if err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return fmt.Errorf("create switches: %w", err)
	}
	return nil
}

// createOne makes a switch. It reports whether it is new and whether its place is taken by one that is, or will be,
// the Machine's: then there is no need for another.
func (c *Controller) createOne(ctx context.Context, m *v1beta1.Machine, sw *v1beta1.Switch) (isNew, isThere bool, err error) {
	err = c.client.Create(ctx, sw)
	if apierrors.IsAlreadyExists(err) {
		isThere, err = c.exists(ctx, m, sw.Name)
		return false, isThere, err
	}
	if err != nil {
		return false, false, err
	}
	c.recent.wroteSwitch(m, sw)
	return true, true, nil
}

// exists looks at a switch that the cache does not show. It reports whether it is the Machine's, or is about to be
// because it has no controller and matches, which wakes us when the cache shows it.
func (c *Controller) exists(ctx context.Context, m *v1beta1.Machine, name string) (bool, error) {
	existing := &v1beta1.Switch{}
	err := c.reader.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: name}, existing)
	if apierrors.IsNotFound(err) {
		return false, nil // it has gone since
	}
	if err != nil {
		return false, fmt.Errorf("look at switch %s, which exists already: %w", name, err)
	}
	if !existing.DeletionTimestamp.IsZero() {
		return false, nil
	}
	if metav1.IsControlledBy(existing, m) {
		c.recent.wroteSwitch(m, existing)
		return true, nil
	}
	selector, err := m.SwitchSelector()
	return metav1.GetControllerOf(existing) == nil && selector.Matches(labels.Set(existing.Labels)) && !object.Paused(existing), err
}

// delete removes switches that are too many, and only those that were meant, unless they have changed since: one whose label
// somebody has taken away is to be kept.
func (c *Controller) delete(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	var deleted atomic.Int32
	err := forEach(switches, c.slots.inTurn(func(sw *v1beta1.Switch) error {
		err := c.client.Delete(ctx, sw, client.Preconditions{UID: &sw.UID, ResourceVersion: &sw.ResourceVersion})
		if err == nil {
			deleted.Add(1)
		}
		if err = object.IgnoreGone(c.rememberSwitch(ctx, m, sw, nil, err)); err != nil {
			return fmt.Errorf("delete switch %s: %w", sw.Name, err)
		}
		return nil
	}))
	if n := int(deleted.Load()); n > 0 {
		c.events.Tell(m, switches[0], v1beta1.EventScaled, "Delete", "Deleted %d %s", n, plural(n))
	}
	return err
}

// raise turns switches up, as the Machine's position asks. One that may not be turned stays down, or the others could
// never be turned down again.
func (c *Controller) raise(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	var raised, left atomic.Int32
	err := forEach(switches, func(sw *v1beta1.Switch) error {
		err := c.patch(ctx, m, sw, func(sw *v1beta1.Switch) { sw.Spec.Position = v1beta1.PositionUp }, func() { raised.Add(1) })
		if object.Refused(err) {
			left.Add(1)
			log.FromContext(ctx).Info("Leaving a switch down that may not be turned up", "switch", sw.Name, "reason", err.Error())
			return nil
		}
		return err
	})
	if n := int(raised.Load()); n > 0 {
		c.events.Tell(m, nil, v1beta1.EventRaised, "Raise", "Turned %d %s up, as the position asks", n, plural(n))
	}
	if n := int(left.Load()); n > 0 {
		c.events.Warn(m, v1beta1.EventRaised, "Raise", "Left %d %s down that may not be turned up", n, plural(n))
	}
	return err
}

// note writes down when switches were noticed to be up, or nil when they are down again.
func (c *Controller) note(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch, seen *metav1.MicroTime) error {
	return forEach(switches, func(sw *v1beta1.Switch) error {
		status := v1beta1.SwitchStatus{ObservedGeneration: sw.Generation, SeenAt: seen}
		written, err := object.PatchStatus(ctx, c.client, sw, func(sw *v1beta1.Switch) *v1beta1.SwitchStatus { return &sw.Status }, &status)
		return object.IgnoreGone(c.rememberSwitch(ctx, m, sw, written, err))
	})
}

// flip turns switches down. It returns when the last of them was certainly down, zero if none was, and remembers it: that
// is what the next interval counts from, because each instant on a switch is a little earlier than its write. One that may be
// down is remembered, too, but not written down: where all requests fail, each would be a new status, and each new status a new
// try at once.
func (c *Controller) flip(ctx context.Context, m *v1beta1.Machine, flips []flip) (flippedAt time.Time, err error) {
	var flipped, attempted atomic.Bool
	err = forEach(flips, func(flip flip) error {
		err := c.turnDown(ctx, m, flip.sw, func() {
			flipped.Store(true)
			c.metrics.lateness.Observe(c.clock.Since(flip.due).Seconds())
			c.events.Tell(m, flip.sw, v1beta1.EventFlipped, "Flip", "Turned switch %s down", flip.sw.Name)
		})
		if object.Unanswered(err) {
			attempted.Store(true)
		}
		if object.Refused(err) {
			// Its turn is over, and comes again after a while whatever the delay is: the next in line must not wait for
			// one that may not be turned.
			again := c.clock.Now().Add(refusedFlipRetry - seconds(m.Spec.Flip.DelaySeconds))
			return errors.Join(err, c.note(ctx, m, []*v1beta1.Switch{flip.sw}, instant(again)))
		}
		return err
	})
	if flipped.Load() {
		flippedAt = c.clock.Now()
		c.recent.flipped(m, flippedAt)
	}
	if attempted.Load() {
		c.recent.mayHaveFlipped(m, c.clock.Now())
	}
	return flippedAt, err
}

// turnDown writes the position together with the instant, so that no crash can part them.
func (c *Controller) turnDown(ctx context.Context, m *v1beta1.Machine, sw *v1beta1.Switch, then func()) error {
	at := instant(c.clock.Now()).UTC().Format(metav1.RFC3339Micro)
	return c.patch(ctx, m, sw, func(sw *v1beta1.Switch) {
		sw.Spec.Position = v1beta1.PositionDown
		metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, at)
	}, func() {
		c.metrics.flips.Inc()
		then()
	})
}

// patch changes a switch, unless it has changed since it was read. One that is gone needs no change, and no sequel.
func (c *Controller) patch(ctx context.Context, m *v1beta1.Machine, sw *v1beta1.Switch, change func(*v1beta1.Switch), then func()) error {
	changed, err := object.Patch(ctx, c.client, sw, change)
	if err := c.rememberSwitch(ctx, m, sw, changed, err); err != nil {
		return object.IgnoreGone(err)
	}
	then()
	return nil
}

// rememberSwitch keeps what a request has made of a switch, which is nil if it was deleted, until the cache shows it. One that is
// refused because the switch has changed or gone tells that the cache is behind, as of a Machine.
func (c *Controller) rememberSwitch(ctx context.Context, m *v1beta1.Machine, read, written *v1beta1.Switch, err error) error {
	switch {
	case err == nil && written != nil:
		c.recent.wroteSwitch(m, written)
	case err == nil, object.Gone(err):
		c.recent.deletedSwitch(m, read.UID)
	case apierrors.IsConflict(err):
		return errors.Join(err, c.lookAtSwitch(ctx, m, read))
	}
	return err
}

// lookAtSwitch asks the API server for what has become of a switch, and remembers it.
func (c *Controller) lookAtSwitch(ctx context.Context, m *v1beta1.Machine, sw *v1beta1.Switch) error {
	current := &v1beta1.Switch{}
	err := c.reader.Get(ctx, client.ObjectKeyFromObject(sw), current)
	switch {
	case err != nil && !object.Gone(err):
		return fmt.Errorf("look at switch %s: %w", sw.Name, err)
	case current.UID == sw.UID:
		c.recent.wroteSwitch(m, current)
	default:
		c.recent.deletedSwitch(m, sw.UID)
	}
	return nil
}

// finalize powers a Machine down that is being deleted and lets it go; the garbage collector removes its switches. It
// waits for nothing: neither a namespace nor an uninstallation is ever held up.
func (c *Controller) finalize(ctx context.Context, m *v1beta1.Machine) error {
	if !controllerutil.ContainsFinalizer(m, v1beta1.MachineFinalizer) {
		return nil
	}
	if !object.Paused(m) {
		if err := c.powerDown(ctx, m); err != nil {
			return err
		}
	}
	written, err := object.RemoveFinalizer(ctx, c.client, m, v1beta1.MachineFinalizer)
	return c.remember(ctx, m, written, err)
}

// powerDown turns down what is up. Only a switch that has changed meanwhile is worth another try.
func (c *Controller) powerDown(ctx context.Context, m *v1beta1.Machine) error {
	switches, err := c.read(m)
	if err != nil {
		return err
	}
	up := slices.DeleteFunc(own(m, switches), func(sw *v1beta1.Switch) bool { return object.Paused(sw) || !isUp(sw) })
	var down atomic.Int32
	err = forEach(up, func(sw *v1beta1.Switch) error {
		err := c.turnDown(ctx, m, sw, func() { down.Add(1) })
		if err != nil && !apierrors.IsConflict(err) {
			log.FromContext(ctx).Error(err, "Leaving a switch up that cannot be turned down", "switch", sw.Name)
			return nil
		}
		return err
	})
	if n := int(down.Load()); n > 0 {
		c.events.Tell(m, nil, v1beta1.EventPoweredDown, "PowerDown", "Turned %d %s down before the Machine goes", n, plural(n))
	}
	return err
}

// newSwitch is a switch as the Machine's template describes it.
func newSwitch(m *v1beta1.Machine, name string) *v1beta1.Switch {
	return &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       m.Namespace,
			Name:            name,
			Labels:          m.SwitchLabels(),
			Annotations:     maps.Clone(m.Spec.Switches.Template.Metadata.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind("Machine"))},
		},
		Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	}
}

// forEach does something for every item, several at a time. An item that fails keeps none of the others back; the
// error of the first such item is returned.
func forEach[T any](items []T, do func(T) error) error {
	errs := make([]error, len(items))
	var group errgroup.Group
	group.SetLimit(maxConcurrent)
	for i, item := range items {
		group.Go(func() error {
			errs[i] = do(item)
			return errs[i]
		})
	}
	if group.Wait() == nil {
		return nil
	}
	return errs[slices.IndexFunc(errs, func(err error) bool { return err != nil })]
}

// slots are how many requests of a kind may be under way at a time.
type slots chan struct{}

// inTurn has something done when there is a slot for it.
func (s slots) inTurn(do func(*v1beta1.Switch) error) func(*v1beta1.Switch) error {
	return func(sw *v1beta1.Switch) error {
		s <- struct{}{}
		defer func() { <-s }()
		return do(sw)
	}
}

func scaledReason(m *v1beta1.Machine) string {
	if condition := meta.FindStatusCondition(m.Status.Conditions, v1beta1.ConditionScaled); condition != nil {
		return condition.Reason
	}
	return ""
}

func plural(n int) string {
	if n == 1 {
		return "switch"
	}
	return "switches"
}
