// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/internal/object"
)

// retries delay what failed, as every controller does, but never past the instant at which the next switch is due:
// a Machine that may not have its fourth switch still has to turn down the third.
type retries struct {
	workqueue.TypedRateLimiter[reconcile.Request]
	clock clock.PassiveClock
	due   sync.Map // time.Time by reconcile.Request
}

func newRetries(clock clock.PassiveClock) *retries {
	return &retries{
		TypedRateLimiter: object.NewRateLimiter(),
		clock:            clock,
	}
}

// noLaterThan bounds the delay of the next retry.
func (r *retries) noLaterThan(request reconcile.Request, due time.Time) {
	r.due.Store(request, due)
}

// When implements workqueue.TypedRateLimiter.
func (r *retries) When(request reconcile.Request) time.Duration {
	delay := r.TypedRateLimiter.When(request)
	if due, ok := r.due.LoadAndDelete(request); ok {
		delay = max(0, min(delay, due.(time.Time).Sub(r.clock.Now())))
	}
	return delay
}
