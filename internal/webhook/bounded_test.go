// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/limit"
)

// TestHostileReviews sends what nobody should wait for, and nobody needs memory for.
func TestHostileReviews(t *testing.T) {
	const before = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7","operation":"CREATE","object":`
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	hook := bounded(admission.WithValidator(scheme, &machineValidator{listReader{}, maxSwitches}), limit.NewSlots(bigSlots))
	for _, test := range []struct {
		reason, body string
		length       int64 // zero for that of the body
		status       int
		want         string
	}{
		{"100,000 lists in lists", before + strings.Repeat("[", 100_000), 0, http.StatusOK, "exceeded max depth"},
		{"100,000 objects in objects", before + strings.Repeat(`{"a":`, 100_000), 0, http.StatusOK, "exceeded max depth"},
		{"lists in lists that end", before + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + "}}", 0, http.StatusOK, `"allowed":false`},
		{"more than 7 MiB, by its own account", "", 100 << 20, http.StatusRequestEntityTooLarge, "larger than 7 MiB"},
		{"more than 7 MiB, by nobody's account", before + `"` + strings.Repeat("x", 8<<20), -1, http.StatusOK, "request entity is too large"},
	} {
		recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, validatePath, strings.NewReader(test.body))
		request.Header.Set("Content-Type", "application/json")
		if test.length != 0 {
			request.ContentLength = test.length
		}
		hook.ServeHTTP(recorder, request)
		if answer := recorder.Body.String(); recorder.Code != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%s: status %d, want %d and %q: %.300s", test.reason, recorder.Code, test.status, test.want, answer)
		}
	}
}

// TestManyLargeReviewsAtOnce has more clients than slots send large reviews, of which none ends. Each is dealt with in its
// time, and a small one passes them by.
func TestManyLargeReviewsAtOnce(t *testing.T) {
	const clients = bigSlots + 3
	synctest.Test(t, func(t *testing.T) {
		var clock clock.RealClock
		var serving atomic.Int64
		hook := bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.ContentLength > bigReview {
				serving.Add(1)
				<-r.Context().Done()
			}
		}), limit.NewSlots(bigSlots))
		call := func(client int, length int64) int {
			recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, validatePath, strings.NewReader(""))
			request.ContentLength = length
			request.RemoteAddr = fmt.Sprintf("10.0.0.%d:1", client)
			hook.ServeHTTP(recorder, request)
			return recorder.Code
		}
		start := clock.Now()
		var all sync.WaitGroup
		for client := range clients {
			all.Go(func() { call(client, bigReview+1) })
		}
		synctest.Wait()
		if got := serving.Load(); got != bigSlots {
			t.Errorf("%d are served at once, want %d", got, bigSlots)
		}
		if code := call(0, bigReview); code != http.StatusOK || clock.Since(start) > 0 {
			t.Errorf("a small one got status %d after %s", code, clock.Since(start))
		}
		all.Wait()
		if took := clock.Since(start); took != reviewTimeout {
			t.Errorf("the last was dealt with after %s, want %s", took, reviewTimeout)
		}
	})
}
