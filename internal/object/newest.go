// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// NewInformer is a shared informer that begins with what is certainly the newest. Where the API server does not stream
// lists, which it has done since 1.34, client-go's own begins with what the API server has at hand. One that lags would have
// an operator that starts know less than the one before it did, and do again what is done.
func NewInformer(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(newest{lw}, object, resync, indexers)
}

type newest struct{ toolscache.ListerWatcher }

// ListWithContext implements toolscache.ListerWithContext.
func (n newest) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.ResourceVersion == "0" { // whatever there is
		options.ResourceVersion = "" // a consistent read
	}
	return toolscache.ToListerWithContext(n.ListerWatcher).ListWithContext(ctx, options)
}

// WatchWithContext implements toolscache.WatcherWithContext.
func (n newest) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return toolscache.ToWatcherWithContext(n.ListerWatcher).WatchWithContext(ctx, options)
}
