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
const editEvery = 10 * time.Millisecond

// An editor is a user who asks one Machine after the other for one switch more, and sees when it is there.
type editor struct {
	world   *world
	more    int // how many switches that makes
	watcher watch.Interface
	quit    chan struct{}
	ended   chan error

	mu     sync.Mutex
	asked  map[string]time.Time // by the name of the switch that there is to be
	served map[string]time.Time
}

// newEditor starts to edit Machines of a world that have so many switches, beginning with that of some number.
func newEditor(ctx context.Context, w *world, switches, first int) (*editor, error) {
	list := &v1beta1.SwitchList{}
	if err := w.admin.List(ctx, list, client.Limit(1)); err != nil {
		return nil, err
	}
	watcher, err := w.admin.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		return nil, err
	}
	e := &editor{
		world: w, more: switches + 1, watcher: watcher, quit: make(chan struct{}), ended: make(chan error, 1),
		asked: map[string]time.Time{}, served: map[string]time.Time{},
	}
	go e.see()
	go func() { e.ended <- e.edit(ctx, first) }()
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
func (e *editor) edit(ctx context.Context, next int) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"switches":{"count":%d}}}`, e.more))
	ticker := time.NewTicker(editEvery)
	defer ticker.Stop()
	for ; ; next++ {
		m := &v1beta1.Machine{}
		m.Namespace, m.Name = metav1.NamespaceDefault, nameOf(next)
		e.mu.Lock()
		e.asked[fmt.Sprintf("%s-%d", m.Name, e.more-1)] = time.Now()
		e.mu.Unlock()
		if err := e.world.admin.Patch(ctx, m, patch); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-e.quit:
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
