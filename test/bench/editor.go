// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// editEvery is the time from one edit to the next.
const editEvery = 50 * time.Millisecond

// An editor is a user who asks one Machine after the other for one switch more, and sees when it is there.
type editor struct {
	world   *world
	size    size // of the world, before the first edit
	watcher watch.Interface
	quit    chan struct{}
	ended   chan error

	mu     sync.Mutex
	asked  map[string]time.Time // by the name of the switch that there is to be
	served map[string]time.Time
}

// newEditor starts to edit Machines of a world, beginning with those that have been edited least.
func newEditor(ctx context.Context, w *world, s size) (*editor, error) {
	list := &v1beta1.SwitchList{}
	if err := w.admin.List(ctx, list, client.Limit(1)); err != nil {
		return nil, err
	}
	watcher, err := w.admin.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		return nil, err
	}
	e := &editor{
		world: w, size: s, watcher: watcher, quit: make(chan struct{}), ended: make(chan error, 1),
		asked: map[string]time.Time{}, served: map[string]time.Time{},
	}
	go e.see()
	go func() { e.ended <- e.edit(ctx) }()
	return e, nil
}

// see notes when switches appear, until the watch ends.
func (e *editor) see() {
	for event := range e.watcher.ResultChan() {
		if sw, ok := event.Object.(*v1beta1.Switch); ok && event.Type == watch.Added {
			e.mu.Lock()
			e.served[sw.Name] = time.Now()
			e.mu.Unlock()
		}
	}
}

// edit edits until it is told to stop.
func (e *editor) edit(ctx context.Context) error {
	ticker := time.NewTicker(editEvery)
	defer ticker.Stop()
	for ; ; e.world.edits++ {
		m := &v1beta1.Machine{}
		m.Namespace, m.Name = metav1.NamespaceDefault, nameOf(e.world.edits%e.size.machines)
		switches := e.size.switches + e.world.edits/e.size.machines
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"switches":{"count":%d}}}`, switches+1))
		e.mu.Lock()
		e.asked[fmt.Sprintf("%s-%d", m.Name, switches)] = time.Now()
		e.mu.Unlock()
		if err := e.world.admin.Patch(ctx, m, patch); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-e.quit:
			e.world.edits++
			return nil
		}
	}
}

// stop ends the edits, waits until all have been served, and returns how long that took, in seconds: for those that were made
// before an instant, and for the others.
func (e *editor) stop(ctx context.Context, instant time.Time) (before, after []float64, err error) {
	defer e.watcher.Stop()
	close(e.quit)
	if err := <-e.ended; err != nil {
		return nil, nil, err
	}
	err = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		before, after = nil, nil
		for name, asked := range e.asked {
			served, ok := e.served[name]
			if !ok {
				return false, nil
			}
			if waited := served.Sub(asked).Seconds(); asked.Before(instant) {
				before = append(before, waited)
			} else {
				after = append(after, waited)
			}
		}
		return true, nil
	})
	return before, after, err
}
