// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// NewInformer returns a shared informer that starts with the newest state of all objects. An API server streams lists
// since Kubernetes 1.34. On an older one, the informer of client-go starts with a list that the API server has cached.
// That list may be older than what the former operator knew, and this operator would repeat changes that are already
// made. Therefore this informer asks for a consistent list.
func NewInformer(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(newest{lw, fmt.Sprintf("%T", object)}, object, resync, indexers)
}

// notStreamed is logged for each list.
const notStreamed = "Reading all objects with a list, because the API server does not stream them (Kubernetes before 1.34)"

type newest struct {
	toolscache.ListerWatcher

	kind string // for the log
}

// ListWithContext implements toolscache.ListerWithContext. client-go calls it only if the API server streams no list.
func (n newest) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.Continue == "" { // the first page
		log.FromContext(ctx).Info(notStreamed, "type", n.kind)
	}
	if options.ResourceVersion == "0" { // a cached list
		options.ResourceVersion = "" // a consistent list
	}
	return toolscache.ToListerWithContext(n.ListerWatcher).ListWithContext(ctx, options)
}

// WatchWithContext implements toolscache.WatcherWithContext.
func (n newest) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return toolscache.ToWatcherWithContext(n.ListerWatcher).WatchWithContext(ctx, options)
}
