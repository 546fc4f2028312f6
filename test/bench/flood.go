// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/versioned"
)

// flood measures whether the operator keeps its lease while it writes as much as the API server takes. Beside it, in other
// worlds, the largest race ends, the herd is prepared, and there is whatever else measures no time.
func flood(ctx context.Context, b *bench) error {
	length := 10 * time.Minute
	if b.quick {
		length = 15 * time.Second
	}
	group, flooding := errgroup.WithContext(ctx)
	group.Go(func() error { return b.saturate(flooding, length) })
	group.Go(func() error { return idle(ctx, b) }) // its ten minutes outlive the flood
	group.Go(func() error { return b.endLargest(flooding, length) })
	group.Go(func() error { return b.runAside(flooding, "memory") })
	group.Go(func() error { return prepareHerd(flooding, b) })
	return group.Wait()
}

// saturate runs the operator with --leader-elect, and with what is installed beside it, which is a FlowSchema for its lease
// among other things. The case is so many Machines, which users scale between one switch and so many, each again as soon as
// it has what it asks for.
//
// Values:
//   - seconds, lease_losses: ends of the operator, and changes of the lease's holder
//   - renewals, lease_gap_max_seconds: the longest time without one
//   - scalings: what users asked for; writes: what came of it, theirs included
//   - cpu_…_seconds
func (b *bench) saturate(ctx context.Context, length time.Duration) (err error) {
	s := size{1_000, 10}
	if b.quick {
		s.machines = 200
	}
	b.say("%s: writing for %s", s, length)
	w, err := newWorld(ctx, b.programs, b.ours, worldOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := w.populate(ctx, machines, s.machines, s.switches); err != nil {
		return err
	}
	r := &runner{contender: asInstalled(b.ours), world: w}
	if r.process, err = w.startManager(r.name, "--leader-elect"); err != nil {
		return err
	}
	if err := r.process.await(ctx); err != nil {
		return err
	}
	if err := w.giveWay(); err != nil {
		return err
	}
	before, err := w.calls(ctx)
	if err != nil {
		return err
	}
	record := Record{Case: s.String(), Contender: r.name, Round: 1, Values: map[string]float64{}}
	start := time.Now()
	flooding := r.spending(record.Values, func() error { return r.flood(ctx, record.Values, s, length) })
	record.Values["seconds"] = time.Since(start).Seconds()
	after, err := w.calls(ctx)
	record.Values["writes"] = writes(after) - writes(before)
	b.say("%s: %.0f writes/s, the lease was lost %.0f times and not renewed for %.1fs at most", s,
		record.Values["writes"]/record.Values["seconds"], record.Values["lease_losses"], record.Values["lease_gap_max_seconds"])
	return errors.Join(flooding, err, b.record(record)) // a lost lease is worth a record
}

// giveWay has the world's processes leave most of the processor to others that want it, which takes from the flood no more than
// that there are fewer writes: what is left is still all taken.
func (w *world) giveWay() error {
	const niceness = 5 // a third of the usual share
	for _, p := range w.all() {
		if err := unix.Setpriority(unix.PRIO_PGRP, p.PID(), niceness); err != nil {
			return fmt.Errorf("lower the priority of %s: %w", p.Name(), err)
		}
	}
	return nil
}

// flood has users scale Machines for so long, and looks at the lease meanwhile.
func (r *runner) flood(ctx context.Context, values map[string]float64, s size, length time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	l := &lease{renewed: time.Now()}
	group.Go(func() error { return l.follow(ctx, r.world) })
	group.Go(func() (err error) {
		values["scalings"], err = r.world.scale(ctx, s)
		return err
	})
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-r.process.Done():
			return errLost
		}
	})
	err := group.Wait()
	if errors.Is(err, errLost) {
		l.losses++
	}
	values["lease_losses"], values["renewals"] = l.losses, l.renewals
	values["lease_gap_max_seconds"] = max(l.gap, time.Since(l.renewed)).Seconds()
	return err
}

var errLost = errors.New("the operator has ended, as it does without its lease")

// scale has users scale Machines between one switch and so many, until the context ends. It returns how often they did.
func (w *world) scale(ctx context.Context, s size) (scalings float64, err error) {
	settled, err := w.settled(ctx)
	if err != nil {
		return 0, err
	}
	var done atomic.Int64
	users, using := errgroup.WithContext(ctx)
	for range 32 {
		users.Go(func() error {
			for m := range settled {
				change := fmt.Appendf(nil, `{"spec":{"switches":{"count":%d}}}`, 1+int32(s.switches)-m.Spec.Switches.Count)
				if err := w.admin.Patch(using, m, client.RawPatch(types.MergePatchType, change)); err != nil {
					return err
				}
				done.Add(1)
			}
			return errors.New("the watch of Machines has ended")
		})
	}
	err = users.Wait()
	if ctx.Err() != nil {
		err = nil // it is over
	}
	return float64(done.Load()), err
}

// settled tells of every Machine that has what it asks for, once for each time that it asks, until the watch or the context
// ends.
func (w *world) settled(ctx context.Context) (<-chan *v1beta1.Machine, error) {
	clientset, err := versioned.NewForConfig(w.plane.Config)
	if err != nil {
		return nil, err
	}
	machines := clientset.UselessV1beta1().Machines(metav1.NamespaceDefault)
	list, err := machines.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	watcher, err := changes(ctx, list.ResourceVersion, machines.Watch)
	if err != nil {
		return nil, err
	}
	settled := make(chan *v1beta1.Machine, len(list.Items)) // none is in it twice: whoever takes it out asks for something
	told := map[types.UID]int64{}                           // the generation
	look := func(m *v1beta1.Machine) {
		observed := m.Status.ObservedGeneration == m.Generation && told[m.UID] < m.Generation
		if observed && m.Status.Switches.Total == m.Spec.Switches.Count {
			told[m.UID] = m.Generation
			settled <- m
		}
	}
	for i := range list.Items {
		look(&list.Items[i])
	}
	go func() {
		defer close(settled)
		for event := range watcher.ResultChan() {
			m, ok := event.Object.(*v1beta1.Machine)
			if !ok {
				return
			}
			look(m)
		}
	}()
	return settled, nil
}
