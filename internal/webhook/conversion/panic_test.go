// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/semaphore"
)

// TestPanic lets a converter panic. Only this call fails: net/http recovers from the panic, and the call returns its
// slot for a large object.
func TestPanic(t *testing.T) {
	var broken atomic.Bool
	handler := &Handler{large: semaphore.NewWeighted(1), converters: map[versionPair]converter{
		{"a/v1", "a/v2"}: func(spec []byte) ([]byte, error) {
			if broken.Load() {
				panic("a bug")
			}
			return spec, nil
		},
	}}
	server := httptest.NewUnstartedServer(handler)
	var logged bytes.Buffer
	server.Config.ErrorLog = log.New(&logged, "", 0)
	server.Start()
	defer server.Close()
	request := `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"7","desiredAPIVersion":"a/v2",` +
		`"objects":[{"apiVersion":"a/v1","kind":"Machine","metadata":{"name":"` + strings.Repeat("m", 200_000) + `"},"spec":{}}]}}`
	const want = `,"spec":{}}],"uid":"7","result":{"metadata":{},"status":"Success"}}}` + "\n"
	for range 3 {
		response, err := server.Client().Post(server.URL, "application/json", strings.NewReader(request))
		if broken.Load() {
			if err == nil {
				t.Errorf("the call that panics got status %s, want no answer", response.Status)
			}
		} else {
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(response.Body)
			if !strings.HasSuffix(string(answer), want) {
				t.Errorf("got %.300s, %v, want ... %s", answer, err, want)
			}
			_ = response.Body.Close()
		}
		broken.Store(!broken.Load())
	}
	server.Close()
	if !strings.Contains(logged.String(), "a bug") {
		t.Errorf("the panic is not logged: %s", &logged)
	}
}
