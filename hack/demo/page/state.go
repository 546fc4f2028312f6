// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/schedule"
)

const (
	// minInterval is the minimum time between two changes that a stream sends.
	minInterval = 100 * time.Millisecond
	// maxInterval is the maximum time between two refreshes. The state also changes without a watch event: each day,
	// the week that it shows for a schedule begins one day later.
	maxInterval = 10 * time.Second
)

// Page is a running page.
type Page struct {
	URL string

	client  client.Client
	stores  map[string]toolscache.Store // by the names of sources
	changed chan struct{}
	latest  atomic.Pointer[snapshot]
	weeks   map[string]week // by schedule and date
	done    chan struct{}
	err     error
}

// snapshot is the state of the page at an instant.
type snapshot struct {
	items    map[string]json.RawMessage // by key, such as machine/default/machine-1
	outdated chan struct{}              // closed when there is a newer snapshot
}

// The names of the sources that are not kinds of workloads.
const machines, switches, events, namespaces = "machines", "switches", "events", "namespaces"

// sources returns an empty object of each kind that the page watches.
func sources() map[string]client.Object {
	all := map[string]client.Object{
		machines: &v1beta1.Machine{}, switches: &v1beta1.Switch{}, events: &eventsv1.Event{},
		namespaces: &corev1.Namespace{},
	}
	for _, kind := range schedule.Kinds() {
		all[kind] = schedule.NewObject(kind)
	}
	return all
}

// Start serves the page on a free port of 127.0.0.1 until the context ends. It returns when the page has the state of
// the cluster.
func Start(ctx context.Context, config *rest.Config) (*Page, error) {
	p, err := watch(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("start the page: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the page: %w", err)
	}
	p.URL = "http://" + l.Addr().String()
	go func() {
		defer close(p.done)
		p.err = p.serve(ctx, l)
	}()
	return p, nil
}

// Wait returns when the page has stopped.
func (p *Page) Wait() error {
	<-p.done
	return p.err
}

func newPage(c client.Client) *Page {
	return &Page{
		client: c, stores: map[string]toolscache.Store{}, changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// watch returns a Page whose stores are the caches of informers. The informers stop when the context ends.
func watch(ctx context.Context, config *rest.Config) (*Page, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1beta1.AddToScheme, cloudnativev1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	informers, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	p := newPage(c)
	for name, object := range sources() {
		i, err := informers.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if meta.IsNoMatchError(err) { // the kind is optional
			continue
		}
		if err == nil {
			_, err = i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { p.notify() }, UpdateFunc: func(any, any) { p.notify() }, DeleteFunc: func(any) { p.notify() },
			})
		}
		if err != nil {
			return nil, err
		}
		p.stores[name] = i.(toolscache.SharedInformer).GetStore()
	}
	go func() { _ = informers.Start(ctx) }() // it returns no error
	if !informers.WaitForCacheSync(ctx) {
		return nil, context.Cause(ctx)
	}
	p.refresh(time.Now())
	return p, nil
}

// notify lets refreshUntil refresh the state.
func (p *Page) notify() {
	select {
	case p.changed <- struct{}{}:
	default: // a refresh is already pending
	}
}

// refreshUntil refreshes the state after each notify, and after maxInterval without one. It returns when the context
// ends.
func (p *Page) refreshUntil(ctx context.Context) {
	for ctx.Err() == nil {
		p.refresh(time.Now())
		select {
		case <-ctx.Done():
		case <-time.After(minInterval):
		}
		select {
		case <-ctx.Done():
		case <-p.changed:
		case <-time.After(maxInterval):
		}
	}
}

// refresh replaces the latest snapshot if the state has changed.
func (p *Page) refresh(now time.Time) {
	items := map[string]json.RawMessage{}
	for key, item := range p.state(now) {
		text, err := json.Marshal(item)
		if err != nil {
			panic(err) // the types of all items can be marshaled
		}
		items[key] = text
	}
	old := p.latest.Load()
	if old != nil && maps.EqualFunc(items, old.items, equal) {
		return
	}
	p.latest.Store(&snapshot{items, make(chan struct{})})
	if old != nil {
		close(old.outdated)
	}
}

func equal(a, b json.RawMessage) bool { return bytes.Equal(a, b) }

// change is the data of a server-sent event.
type change struct {
	Set  map[string]json.RawMessage `json:"set"`
	Gone []string                   `json:"gone"`
}

// since returns the changes since a previous snapshot as a server-sent event. If previous is nil, the event has the
// full state.
func (s *snapshot) since(previous *snapshot) string {
	name, c := "state", change{s.items, []string{}}
	if previous != nil {
		name, c.Set = "change", maps.Clone(s.items)
		maps.DeleteFunc(c.Set, func(key string, item json.RawMessage) bool { return equal(item, previous.items[key]) })
		for key := range previous.items {
			if s.items[key] == nil {
				c.Gone = append(c.Gone, key)
			}
		}
	}
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // all items are JSON already
	}
	return fmt.Sprintf("event: %s\ndata: %s\n\n", name, data)
}
