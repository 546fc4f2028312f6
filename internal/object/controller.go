// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// firstRetry is the delay before a failed reconcile is tried again.
	firstRetry = 5 * time.Millisecond

	// LastRetry is what that delay becomes in the end, doubled with each failure. It bounds how long it goes unnoticed
	// that nothing is in the way any more.
	LastRetry = time.Minute
)

// Options are those of every controller, with so many objects under way at a time.
func Options(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             NewRateLimiter(),
		ReconciliationTimeout:   30 * time.Second,
	}
}

// NewRateLimiter returns what delays the next try of a reconcile that has failed.
func NewRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, LastRetry)
}
