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
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"container.training/useless/api/useless/v1beta1"
)

// maxBatch bounds how many requests for one Machine are under way at a time.
const maxBatch = 64

// act carries out a plan and returns the Machine's switches as they are then. Its steps do not depend on each other,
// so one that fails keeps none of the others back.
func (c *Controller) act(ctx context.Context, m *v1beta1.Machine, p plan, switches []*v1beta1.Switch) ([]*v1beta1.Switch, outcome, error) {
	done := outcome{carriedOut: p.carriedOut}
	if p.empty() {
		return p.mine, done, nil
	}
	ownership := errors.Join(c.release(ctx, m, p.release), c.adopt(ctx, m, p.adopt))
	done.scaling = errors.Join(c.create(ctx, m, p.create, names(m, switches)), c.delete(ctx, m, p.surplus))
	raising := c.raise(ctx, m, p.raise)
	done.carriedOut = p.carriedOut && raising == nil
	noticing := errors.Join(c.note(ctx, m, p.notice, instant(c.clock.Now())), c.note(ctx, m, p.forget, nil))
	flippedAt, flipping := c.flip(ctx, m, p.flip)
	done.flippedAt = flippedAt
	switches, reading := c.read(m)
	return own(m, switches), done, errors.Join(ownership, done.scaling, raising, noticing, flipping, reading)
}

// release lets go of switches that no longer match.
func (c *Controller) release(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	return inBatches(switches, func(sw *v1beta1.Switch) error {
		return c.patch(ctx, m, sw, func(sw *v1beta1.Switch) {
			sw.OwnerReferences = slices.DeleteFunc(sw.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == m.UID })
		}, func() {
			c.tell(m, sw, v1beta1.EventReleased, "Release", "Released switch %s, which no longer matches", sw.Name)
		})
	})
}

// adopt takes switches that match and have no controller.
func (c *Controller) adopt(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	if len(switches) == 0 {
		return nil
	}
	// The API server is asked, as the ReplicaSet controller does: a Machine that was deleted with its switches to be
	// kept must not take them back because the cache has not heard of it.
	current := &v1beta1.Machine{}
	if err := c.reader.Get(ctx, key(m), current); err != nil {
		return client.IgnoreNotFound(err)
	}
	if current.UID != m.UID || !current.DeletionTimestamp.IsZero() {
		return nil
	}
	return inBatches(switches, func(sw *v1beta1.Switch) error {
		return c.patch(ctx, m, sw, func(sw *v1beta1.Switch) {
			sw.OwnerReferences = append(sw.OwnerReferences, *metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind("Machine")))
		}, func() {
			c.tell(m, sw, v1beta1.EventAdopted, "Adopt", "Adopted switch %s", sw.Name)
		})
	})
}

// create makes missing switches. A name that something else has taken is passed over.
func (c *Controller) create(ctx context.Context, m *v1beta1.Machine, missing int, name func() string) error {
	var mu sync.Mutex
	var created []*v1beta1.Switch
	defer func() {
		if len(created) > 0 {
			c.tell(m, created[0], v1beta1.EventScaled, "Create", "Created %d %s", len(created), plural(len(created)))
		}
	}()
	for missing > 0 {
		candidates := make([]string, missing)
		for i := range candidates {
			candidates[i] = name()
		}
		var taken atomic.Int32
		err := inBatches(candidates, func(name string) error {
			sw := newSwitch(m, name)
			err := c.client.Create(ctx, sw)
			switch {
			case err == nil:
				c.recent.wroteSwitch(m, sw)
				mu.Lock()
				defer mu.Unlock()
				created = append(created, sw)
			case apierrors.IsAlreadyExists(err):
				var free bool
				if free, err = c.exists(ctx, m, name); !free {
					taken.Add(1)
				}
			case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
				return nil // nothing can be created, nor need it be
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("create switches: %w", err)
		}
		missing = int(taken.Load())
	}
	return nil
}

// exists looks at what has the name that a new switch was to have. It reports whether that name is the Machine's to
// have: the switch is its own already, or is about to go, which will wake us.
func (c *Controller) exists(ctx context.Context, m *v1beta1.Machine, name string) (bool, error) {
	existing := &v1beta1.Switch{}
	if err := c.reader.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: name}, existing); err != nil {
		return true, fmt.Errorf("look at switch %s, which exists already: %w", name, err)
	}
	if !existing.DeletionTimestamp.IsZero() {
		return true, nil
	}
	if !metav1.IsControlledBy(existing, m) {
		return false, nil
	}
	c.recent.wroteSwitch(m, existing)
	return true, nil
}

// delete removes switches that are too many, and only those that were meant.
func (c *Controller) delete(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	var deleted atomic.Int32
	err := inBatches(switches, func(sw *v1beta1.Switch) error {
		err := c.client.Delete(ctx, sw, client.Preconditions{UID: &sw.UID})
		if err == nil {
			deleted.Add(1)
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete switch %s: %w", sw.Name, err)
		}
		c.recent.deletedSwitch(m, sw.UID)
		return nil
	})
	if n := int(deleted.Load()); n > 0 {
		c.tell(m, switches[0], v1beta1.EventScaled, "Delete", "Deleted %d %s", n, plural(n))
	}
	return err
}

// raise turns switches up, as the Machine's position asks.
func (c *Controller) raise(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch) error {
	err := inBatches(switches, func(sw *v1beta1.Switch) error {
		return c.patch(ctx, m, sw, func(sw *v1beta1.Switch) { sw.Spec.Position = v1beta1.PositionUp }, nil)
	})
	if err == nil && len(switches) > 0 {
		c.tell(m, nil, v1beta1.EventRaised, "Raise", "Turned %d %s up, as the position asks", len(switches), plural(len(switches)))
	}
	return err
}

// note writes down when switches were noticed to be up, or nil when they are down again.
func (c *Controller) note(ctx context.Context, m *v1beta1.Machine, switches []*v1beta1.Switch, seen *metav1.MicroTime) error {
	return inBatches(switches, func(sw *v1beta1.Switch) error {
		noted := sw.DeepCopy()
		noted.Status = v1beta1.SwitchStatus{ObservedGeneration: sw.Generation, SeenAt: seen.DeepCopy()}
		if err := c.client.Status().Patch(ctx, noted, client.MergeFromWithOptions(sw, client.MergeFromWithOptimisticLock{})); err != nil {
			return client.IgnoreNotFound(err)
		}
		c.recent.wroteSwitch(m, noted)
		return nil
	})
}

// flip turns switches down. It returns when the last of them was certainly down, which is what the next interval
// counts from: each instant on a switch is a little earlier than its write.
func (c *Controller) flip(ctx context.Context, m *v1beta1.Machine, flips []flip) (flippedAt time.Time, err error) {
	var flipped atomic.Bool
	err = inBatches(flips, func(flip flip) error {
		return c.turnDown(ctx, m, flip.sw, func(at time.Time) {
			flipped.Store(true)
			c.metrics.flips.Inc()
			c.metrics.lateness.Observe(max(at.Sub(flip.due), 0).Seconds())
			c.tell(m, flip.sw, v1beta1.EventFlipped, "Flip", "Turned switch %s down", flip.sw.Name)
		})
	})
	if flipped.Load() {
		flippedAt = c.clock.Now()
	}
	return flippedAt, err
}

// turnDown writes the position together with the instant, so that no crash can part them.
func (c *Controller) turnDown(ctx context.Context, m *v1beta1.Machine, sw *v1beta1.Switch, then func(at time.Time)) error {
	at := instant(c.clock.Now())
	return c.patch(ctx, m, sw, func(sw *v1beta1.Switch) {
		sw.Spec.Position = v1beta1.PositionDown
		metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, at.UTC().Format(metav1.RFC3339Micro))
	}, func() { then(at.Time) })
}

// patch changes a switch, unless it has changed since it was read. One that is gone needs no change.
func (c *Controller) patch(ctx context.Context, m *v1beta1.Machine, sw *v1beta1.Switch, change func(*v1beta1.Switch), then func()) error {
	changed := sw.DeepCopy()
	change(changed)
	if err := c.client.Patch(ctx, changed, client.MergeFromWithOptions(sw, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	c.recent.wroteSwitch(m, changed)
	if then != nil {
		then()
	}
	return nil
}

// finalize powers a Machine down that is being deleted and lets it go; the garbage collector removes its switches. It
// waits for nothing: neither a namespace nor an uninstallation is ever held up.
func (c *Controller) finalize(ctx context.Context, m *v1beta1.Machine) error {
	if !controllerutil.ContainsFinalizer(m, v1beta1.MachineFinalizer) {
		return nil
	}
	if !paused(m) {
		if err := c.powerDown(ctx, m); err != nil {
			return err
		}
	}
	_, err := c.patchMachine(ctx, m, func(m *v1beta1.Machine) { controllerutil.RemoveFinalizer(m, v1beta1.MachineFinalizer) })
	return client.IgnoreNotFound(err)
}

func (c *Controller) powerDown(ctx context.Context, m *v1beta1.Machine) error {
	switches, err := c.read(m)
	if err != nil {
		return err
	}
	up := slices.DeleteFunc(own(m, switches), func(sw *v1beta1.Switch) bool { return paused(sw) || !isUp(sw) })
	err = inBatches(up, func(sw *v1beta1.Switch) error {
		err := c.turnDown(ctx, m, sw, func(time.Time) { c.metrics.flips.Inc() })
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			log.FromContext(ctx).Info("Leaving a switch up that may not be turned down", "switch", sw.Name, "reason", err.Error())
			return nil
		}
		return err
	})
	if err == nil && len(up) > 0 {
		c.tell(m, nil, v1beta1.EventPoweredDown, "PowerDown", "Turned %d %s down before the Machine goes", len(up), plural(len(up)))
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

// inBatches does something for every item, a batch at a time. Batches grow while they succeed (1, 2, 4, …), so that
// whatever refuses all of the requests refuses one of them, not a thousand.
func inBatches[T any](items []T, do func(T) error) error {
	for size := 1; len(items) > 0; size = min(2*size, maxBatch) {
		batch := items[:min(size, len(items))]
		items = items[len(batch):]
		var group errgroup.Group
		for _, item := range batch {
			group.Go(func() error { return do(item) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// tell emits an event about something that was done, with the switch that it was done to.
func (c *Controller) tell(m *v1beta1.Machine, related *v1beta1.Switch, reason, action, note string, args ...any) {
	var object runtime.Object
	if related != nil {
		object = related
	}
	c.events.Eventf(m, object, corev1.EventTypeNormal, reason, action, note, args...)
}

// warn emits an event about something that could not be done.
func (c *Controller) warn(m *v1beta1.Machine, reason, action, note string, args ...any) {
	c.events.Eventf(m, nil, corev1.EventTypeWarning, reason, action, note, args...)
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
