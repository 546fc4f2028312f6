// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package informer configures the informers of the operator's caches.
package informer

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// New returns a shared informer that starts with the newest state of all objects. API servers since Kubernetes 1.34
// stream lists. With an older API server, an informer of client-go starts with a list from the API server's cache. That
// list can be older than the data of the previous leader, and the new leader could repeat changes. Therefore this
// informer requests a consistent list from an older API server.
func New(
	lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(consistent(lw, object), object, resync, indexers)
}

// notStreamed is the message that is logged for each list.
const notStreamed = "Reading all objects with a list, " +
	"because the API server does not stream them (Kubernetes before 1.34)"

// consistent returns lw with consistent lists. client-go calls the list function only if the API server does not stream
// the objects.
func consistent(lw toolscache.ListerWatcher, object runtime.Object) *toolscache.ListWatch {
	wrapped := toolscache.ToListerWatcherWithContext(lw)
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.Continue == "" { // the first page
			log.FromContext(ctx).Info(notStreamed, "type", fmt.Sprintf("%T", object))
		}
		if options.ResourceVersion == "0" { // a cached list
			options.ResourceVersion = "" // a consistent list
		}
		return wrapped.ListWithContext(ctx, options)
	}
	return &toolscache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: wrapped.WatchWithContext}
}

// Store returns the store of the informer for a kind, with additional indexes. Unlike a list of the client, the store
// does not copy objects. Callers must not change them, because they belong to the cache.
func Store(
	ctx context.Context, informers cache.Informers, kind client.Object, indexers toolscache.Indexers,
) (toolscache.Indexer, error) {
	informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, errors.New("the cache must not be split by namespace or selector")
	}
	return shared.GetIndexer(), shared.AddIndexers(indexers)
}

// Merge merges cache options by kind. It returns an error if a kind is configured twice, even if one of the two objects
// is a PartialObjectMetadata. Without the error, the cache would use only one of the options, and a controller would
// not find all its objects.
func Merge(
	scheme *runtime.Scheme, all ...map[client.Object]cache.ByObject,
) (map[client.Object]cache.ByObject, error) {
	merged, known := map[client.Object]cache.ByObject{}, map[schema.GroupVersionKind]bool{}
	for _, options := range all {
		for object, byObject := range options {
			kind, err := apiutil.GVKForObject(object, scheme)
			if err != nil {
				return nil, err
			}
			if known[kind] {
				return nil, fmt.Errorf("the cache of %s is configured twice", kind)
			}
			known[kind], merged[object] = true, byObject
		}
	}
	return merged, nil
}
