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
	// several times. A container of 256 MiB has too little memory for many such requests at once. A Machine with 1,000
	// switches has a tenth of this size.
	LargeBytes = 64 << 10

	// MaxLarge is the number of those slots. The admission webhooks share one set of slots, and the conversion webhook
	// has its own.
	MaxLarge = 2

	// maxReview is the number of bytes that controller-runtime reads of a review. It is more than two objects of the
	// largest size that the API server accepts.
	maxReview = 7 << 20

	// reviewTimeout is how long the API server waits for an admission webhook. It equals timeoutSeconds in the markers
	// of the webhooks.
	reviewTimeout = 5 * time.Second
)

// LimitReviews returns an admission webhook that rejects a review above maxReview, and ends each review after
// reviewTimeout. A review above LargeBytes waits for a slot of large.
func LimitReviews(hook http.Handler, large *semaphore.Weighted) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxReview {
			http.Error(w, "the review is larger than 7 MiB", http.StatusRequestEntityTooLarge)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
		defer cancel()
		if deadline, ok := ctx.Deadline(); ok { // for a client that never completes the body
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
