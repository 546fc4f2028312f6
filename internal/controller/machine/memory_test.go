// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/informer"
)

// A switchFunc returns Switch number i, as the API server sends it. Each Machine has ten Switches.
type switchFunc func(i int) *v1beta1.Switch

// TestCacheMemory limits the memory that a cached Switch needs. The result does not depend on the computer or on the
// number of Switches.
func TestCacheMemory(t *testing.T) {
	const minRatio = 2 // the memory of controller-runtime's default cache, divided by the memory of our cache
	for _, test := range []struct {
		state     string
		newSwitch switchFunc
		maxBytes  float64
	}{
		{"resting", restingSwitch, 700},
		{"flipped", flippedSwitch, 1100},
	} {
		t.Run(test.state, func(t *testing.T) {
			trimmed := cache.Options{ByObject: machine.Options{}.CacheOptions()}
			ours := heapPerSwitch(t, informer.NewCache, trimmed, test.newSwitch)
			theirs := heapPerSwitch(t, cache.New, cache.Options{}, test.newSwitch)
			t.Logf("our cache: %.0f bytes, default cache: %.0f bytes, ratio: %.2f", ours, theirs, theirs/ours)
			if ours > test.maxBytes || theirs/ours < minRatio {
				t.Errorf("our cache needs %.0f bytes, want at most %.0f; ratio %.2f, want at least %d",
					ours, test.maxBytes, theirs/ours, minRatio)
			}
		})
	}
}

// heapPerSwitch returns the bytes of live heap that each Switch in the cache needs. It measures with few and with many
// Switches, and divides the difference by the number of additional Switches.
func heapPerSwitch(t *testing.T, newCache cache.NewCacheFunc, options cache.Options, newSwitch switchFunc) float64 {
	t.Helper()
	const few, many = 200, 2_000
	small, err := heapOf(t.Context(), newCache, options, switchServer{newSwitch, few})
	if err != nil {
		t.Fatal(err)
	}
	large, err := heapOf(t.Context(), newCache, options, switchServer{newSwitch, many})
	if err != nil {
		t.Fatal(err)
	}
	return (large - small) / (many - few)
}

// heapOf returns the bytes that a cache of Switches adds to the live heap. The cache reads the Switches from an HTTP
// server, so that it decodes them as in the operator.
func heapOf(
	ctx context.Context, newCache cache.NewCacheFunc, options cache.Options, switches switchServer,
) (float64, error) {
	server := httptest.NewServer(switches)
	defer server.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	options.HTTPClient = server.Client()
	options.Scheme = runtime.NewScheme()
	if err := v1beta1.AddToScheme(options.Scheme); err != nil {
		return 0, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Machine", "Switch"} {
		mapper.Add(v1beta1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	options.Mapper = mapper

	before := liveHeap()
	informers, err := newCache(&rest.Config{Host: server.URL}, options)
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
	if n := len(store.ListKeys()); !synced || n != switches.count {
		return 0, fmt.Errorf("the cache has %d of %d Switches", n, switches.count)
	}
	cancel()
	return after - before, <-ended
}

func indexByOwner(cached any) ([]string, error) {
	sw := cached.(*v1beta1.Switch)
	return []string{sw.Namespace + "/" + string(metav1.GetControllerOfNoCopy(sw).UID)}, nil
}

// liveHeap returns the size of the live heap in bytes. The second collection frees objects with finalizers.
func liveHeap() float64 {
	goruntime.GC()
	goruntime.GC()
	var stats goruntime.MemStats
	goruntime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// A switchServer answers lists and watches of Switches, as an API server does. A watch may begin with a list.
type switchServer struct {
	newSwitch switchFunc
	count     int
}

// ServeHTTP implements http.Handler. It sends one Switch after the other, so it needs almost no memory itself. If a
// write fails, the cache does not become complete.
func (s switchServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const resourceVersion = "10000000"
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	if !r.URL.Query().Has("watch") {
		fmt.Fprintf(w, `{"kind":"SwitchList","metadata":{"resourceVersion":%q},"items":[`, resourceVersion)
		for i := range s.count {
			if i > 0 {
				fmt.Fprint(w, ",")
			}
			_ = encoder.Encode(s.newSwitch(i))
		}
		fmt.Fprint(w, "]}")
		return
	}
	send := func(event watch.EventType, sw *v1beta1.Switch) {
		sw.SetGroupVersionKind(v1beta1.GroupVersion.WithKind("Switch"))
		_ = encoder.Encode(map[string]any{"type": event, "object": sw})
	}
	if r.URL.Query().Has("sendInitialEvents") {
		for i := range s.count {
			send(watch.Added, s.newSwitch(i))
		}
		send(watch.Bookmark, &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: resourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	if http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
}

// restingSwitch returns a Switch that the operator has created, and that was never turned up.
func restingSwitch(i int) *v1beta1.Switch {
	machine := fmt.Sprintf("machine-%05d", i/10)
	created := metav1.Date(2026, time.November, 20, 9, 0, 0, 0, time.UTC)
	owner := metav1.OwnerReference{
		APIVersion: v1beta1.GroupVersion.String(), Kind: "Machine", Name: machine,
		UID:        types.UID(fmt.Sprintf("d286d365-c608-4168-813b-%012d", i/10)),
		Controller: new(true), BlockOwnerDeletion: new(true),
	}
	return &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("%s-%d", machine, i%10),
			UID:             types.UID(fmt.Sprintf("67a00295-4fc3-4939-96a4-%012d", i)),
			ResourceVersion: fmt.Sprint(1_000_000 + i), Generation: 1, CreationTimestamp: created,
			Labels:          map[string]string{v1beta1.MachineLabel: machine},
			OwnerReferences: []metav1.OwnerReference{owner},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("", created, fmt.Sprintf(`{"f:metadata":{`+
				`"f:labels":{".":{},"f:machine":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},`+
				`"f:spec":{".":{},"f:position":{}}}`, owner.UID))},
		},
		Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	}
}

// flippedSwitch returns a Switch that was turned up once, and that the operator has turned down.
func flippedSwitch(i int) *v1beta1.Switch {
	sw := restingSwitch(i)
	sw.Generation = 3
	sw.Annotations = map[string]string{v1beta1.FlippedAtAnnotation: fmt.Sprintf("2026-11-20T09:00:05.%06dZ", i)}
	sw.Status.ObservedGeneration = 3
	sw.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("", sw.CreationTimestamp, fmt.Sprintf(`{"f:metadata":{"f:annotations":{".":{},"f:%s":{}},`+
			`"f:labels":{".":{},"f:machine":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},`+
			`"f:spec":{"f:position":{}}}`, v1beta1.FlippedAtAnnotation, sw.OwnerReferences[0].UID)),
		managed("status", sw.CreationTimestamp, `{"f:status":{".":{},"f:observedGeneration":{}}}`),
	}
	return sw
}

// managed returns the managedFields entry of the operator.
func managed(subresource string, at metav1.Time, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: "manager", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource, Time: &at,
		APIVersion: v1beta1.GroupVersion.String(), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}
}
