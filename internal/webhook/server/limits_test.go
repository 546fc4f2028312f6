// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/semaphore"
)

// TestLargeReviews sends more large reviews than there are slots. No review ends by itself, so the webhook must end
// each of them after reviewTimeout. A small review must not wait.
func TestLargeReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var serving atomic.Int64
		hook := LimitReviews(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.ContentLength > LargeBytes {
				serving.Add(1)
				<-r.Context().Done()
			}
		}), semaphore.NewWeighted(MaxLarge))
		call := func(length int64) int {
			recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(""))
			request.ContentLength = length
			hook.ServeHTTP(recorder, request)
			return recorder.Code
		}
		start := realClock.Now()
		var all sync.WaitGroup
		for range MaxLarge + 3 {
			all.Go(func() { call(LargeBytes + 1) })
		}
		synctest.Wait()
		if got := serving.Load(); got != MaxLarge {
			t.Errorf("%d large reviews are served at the same time, want %d", got, MaxLarge)
		}
		if code := call(LargeBytes); code != http.StatusOK || realClock.Since(start) > 0 {
			t.Errorf("a small review got status %d after %s", code, realClock.Since(start))
		}
		all.Wait()
		if took := realClock.Since(start); took != reviewTimeout {
			t.Errorf("the last review ended after %s, want %s", took, reviewTimeout)
		}
	})
}
