// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"net/http"
	"time"

	"container.training/useless/internal/limit"
)

const (
	// maxReview is how much controller-runtime reads of a request: two objects of the API server's largest size, and more.
	maxReview = 7 << 20

	// A request that is larger than this waits for one of few slots, for it is in memory several times over and many at
	// once would not fit into a container of 256 MiB. A Machine of a thousand switches is a tenth of it. One slot is for each
	// client: an API server's large requests come one after the other.
	bigReview = 64 << 10
	bigSlots  = 2

	// reviewTimeout is how long the API server waits for an answer, as the markers in this package say.
	reviewTimeout = 5 * time.Second
)

// bounded is a hook that takes no more memory than it has, and no longer than somebody waits for it, whatever clients send. Large
// requests take turns, whichever hook they are for.
func bounded(hook http.Handler, big *limit.Slots) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxReview {
			http.Error(w, "the review is larger than 7 MiB", http.StatusRequestEntityTooLarge)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
		defer cancel()
		if deadline, ok := ctx.Deadline(); ok { // without which a body may take for ever
			_ = http.NewResponseController(w).SetReadDeadline(deadline)
		}
		if r.ContentLength < 0 || r.ContentLength > bigReview { // the API server always says how long a request is
			release, err := big.Take(ctx, r.RemoteAddr)
			if err != nil {
				http.Error(w, "too many large reviews at a time", http.StatusServiceUnavailable)
				return
			}
			defer release()
		}
		hook.ServeHTTP(w, r.WithContext(ctx))
	})
}
