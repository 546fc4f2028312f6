// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"context"
	"errors"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Store returns the store of a cache's informer for a kind, with indexes added, of which there may be none. Its objects
// are the cache's own: to list through the client copies or allocates for every object.
func Store(ctx context.Context, informers cache.Informers, kind client.Object, indexers toolscache.Indexers) (toolscache.Indexer, error) {
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
