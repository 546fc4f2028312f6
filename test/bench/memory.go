// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/informer"
)

// A cacheContender caches switches. Both have the index that a controller finds the switches of a Machine by.
type cacheContender struct {
	name    string
	options func() cache.Options
}

var cacheContenders = []cacheContender{
	{"ours", func() cache.Options { return cache.Options{ByObject: machine.Options{}.CacheOptions()} }},
	{"default", func() cache.Options { return cache.Options{} }},
}

// A fill is what a cache is filled with: switches, ten to a Machine.
type fill struct {
	state string
	// newSwitch is one of them, as the API server sends it.
	newSwitch func(i int) *v1beta1.Switch
}

var fills = []fill{
	{"resting", restingSwitch},
	{"flipped", flippedSwitch},
}

// cacheMemory measures by how much the live heap of this process grows with each switch in a cache.
func cacheMemory(ctx context.Context, b *bench) error {
	few, many, rounds := 10_000, 100_000, b.rounds
	if b.quick {
		few, many, rounds = 1_000, 10_000, 1
	}
	for _, fill := range fills {
		contenders := slices.Clone(cacheContenders)
		for round := range rounds {
			for _, c := range contenders {
				b.say("%d %s switches in the cache of %s", many, fill.state, c.name)
				perSwitch, err := heapPerSwitch(ctx, c, fill, few, many)
				if err != nil {
					return err
				}
				values := map[string]float64{"heap_per_switch_bytes": perSwitch}
				if err := b.record(Record{Case: fill.state, Contender: c.name, Round: round + 1, Values: values}); err != nil {
					return err
				}
			}
			slices.Reverse(contenders)
		}
	}
	return nil
}

// heapPerSwitch is the slope of the live heap between two numbers of switches.
func heapPerSwitch(ctx context.Context, c cacheContender, fill fill, few, many int) (float64, error) {
	small, err := heapOf(ctx, c, fill, few)
	if err != nil {
		return 0, err
	}
	large, err := heapOf(ctx, c, fill, many)
	return (large - small) / float64(many-few), err
}

// heapOf is what a cache of so many switches adds to the live heap, in bytes. It is filled through HTTP, by the client of
// every operator, so that what it has was decoded as it always is.
func heapOf(ctx context.Context, c cacheContender, fill fill, switches int) (float64, error) {
	server := httptest.NewServer(watchList{fill, switches})
	defer server.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := c.options()
	options.Scheme = newScheme()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Machine", "Switch"} {
		mapper.Add(v1beta1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	options.Mapper = mapper

	before := liveHeap()
	informers, err := cache.New(&rest.Config{Host: server.URL}, options)
	if err != nil {
		return 0, err
	}
	store, err := informer.Store(ctx, informers, &v1beta1.Switch{}, toolscache.Indexers{"owner": indexByOwner})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- informers.Start(ctx) }()
	synced := informers.WaitForCacheSync(ctx)
	after := liveHeap()
	if n := len(store.ListKeys()); !synced || n != switches {
		return 0, fmt.Errorf("%d of %d switches in the cache", n, switches)
	}
	cancel()
	return after - before, <-ended
}

func indexByOwner(cached any) ([]string, error) {
	sw := cached.(*v1beta1.Switch)
	return []string{sw.Namespace + "/" + string(metav1.GetControllerOfNoCopy(sw).UID)}, nil
}

// liveHeap is how much of the heap is in use, in bytes. What the first collection finds to be finalized, the second frees.
func liveHeap() float64 {
	goruntime.GC()
	goruntime.GC()
	var stats goruntime.MemStats
	goruntime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// A watchList answers any request with a watch that begins with a list, as an API server does.
type watchList struct {
	fill
	switches int
}

// ServeHTTP implements http.Handler.
func (l watchList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	var problem error
	send := func(event watch.EventType, sw *v1beta1.Switch) {
		sw.SetGroupVersionKind(v1beta1.GroupVersion.WithKind("Switch"))
		problem = errors.Join(problem, encoder.Encode(map[string]any{"type": event, "object": sw}))
	}
	for i := range l.switches {
		send(watch.Added, l.newSwitch(i))
	}
	send(watch.Bookmark, &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "10000000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	if problem == nil && http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
}

// restingSwitch is one that the operator created for its Machine.
func restingSwitch(i int) *v1beta1.Switch {
	machine := fmt.Sprintf("machine-%05d", i/10)
	created := metav1.Date(2026, time.November, 20, 9, 0, 0, 0, time.UTC)
	owner := metav1.OwnerReference{
		APIVersion: v1beta1.GroupVersion.String(), Kind: "Machine", Name: machine, Controller: new(true), BlockOwnerDeletion: new(true),
		UID: types.UID(fmt.Sprintf("d286d365-c608-4168-813b-%012d", i/10)),
	}
	return &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("%s-%d", machine, i%10), UID: types.UID(fmt.Sprintf("67a00295-4fc3-4939-96a4-%012d", i)),
			ResourceVersion: fmt.Sprint(1_000_000 + i), Generation: 1, CreationTimestamp: created,
			Labels: map[string]string{v1beta1.MachineLabel: machine}, OwnerReferences: []metav1.OwnerReference{owner},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("", created, fmt.Sprintf(
				`{"f:metadata":{"f:labels":{".":{},"f:machine":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},"f:spec":{".":{},"f:position":{}}}`,
				owner.UID))},
		},
		Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	}
}

// flippedSwitch is one that was turned up once, and that the operator has noticed and turned down.
func flippedSwitch(i int) *v1beta1.Switch {
	sw := restingSwitch(i)
	sw.Generation = 3
	sw.Annotations = map[string]string{v1beta1.FlippedAtAnnotation: fmt.Sprintf("2026-11-20T09:00:05.%06dZ", i)}
	sw.Status.ObservedGeneration = 3
	sw.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("", sw.CreationTimestamp, fmt.Sprintf(
			`{"f:metadata":{"f:annotations":{".":{},"f:%s":{}},"f:labels":{".":{},"f:machine":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},"f:spec":{"f:position":{}}}`,
			v1beta1.FlippedAtAnnotation, sw.OwnerReferences[0].UID)),
		managed("status", sw.CreationTimestamp, `{"f:status":{".":{},"f:observedGeneration":{}}}`),
	}
	return sw
}

// managed says which fields the operator has written.
func managed(subresource string, at metav1.Time, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: "manager", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource, Time: &at,
		APIVersion: v1beta1.GroupVersion.String(), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}
}
