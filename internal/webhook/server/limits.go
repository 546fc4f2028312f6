// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// LargeBytes is the size above which an object or a review needs one of MaxLarge slots. Such a request is in memory
	// several times, and many of them do not fit into a container of 256 MiB. A Machine with 1,000 switches has a tenth
	// of this size.
	LargeBytes = 64 << 10

	// MaxLarge is the number of those slots.
	MaxLarge = 2

	// maxReview is the most that controller-runtime reads of a review. It is more than two objects of the largest size
	// that the API server accepts.
	maxReview = 7 << 20

	// reviewTimeout is how long the API server waits for an admission webhook, as the markers of the webhooks say.
	reviewTimeout = 5 * time.Second
)

// LimitReviews returns an admission webhook that rejects too large reviews, and ends each after the time that the API
// server waits for it. Large reviews wait for a slot of large.
func LimitReviews(hook http.Handler, large *semaphore.Weighted) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxReview {
			http.Error(w, "the review is larger than 7 MiB", http.StatusRequestEntityTooLarge)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
		defer cancel()
		if deadline, ok := ctx.Deadline(); ok { // ends a body that never ends
			_ = http.NewResponseController(w).SetReadDeadline(deadline)
		}
		if r.ContentLength < 0 || r.ContentLength > LargeBytes { // the API server always sends the length
			if large.Acquire(ctx, 1) != nil {
				http.Error(w, "too many large reviews at the same time", http.StatusServiceUnavailable)
				return
			}
			defer large.Release(1)
		}
		hook.ServeHTTP(w, r.WithContext(ctx))
	})
}
