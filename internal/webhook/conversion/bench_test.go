// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
)

// BenchmarkConversion measures the time of a review, with this handler and with controller-runtime's handler.
func BenchmarkConversion(b *testing.B) {
	stock := newStock(b)
	for _, objects := range []int{1, 500, 10_000} {
		body := machines(b, objects)
		for _, subject := range []struct {
			name    string
			handler http.Handler
		}{{"ours", newHandler()}, {"stock", stock}} {
			b.Run(fmt.Sprintf("in process/objects=%d/%s", objects, subject.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					request := newRequest(bytes.NewReader(body))
					subject.handler.ServeHTTP(discard{http.Header{}}, request)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*objects), "ns/object")
			})
			b.Run(fmt.Sprintf("TLS/objects=%d/%s", objects, subject.name), func(b *testing.B) {
				server, client := serve(subject.handler)
				defer server.Close()
				for b.Loop() {
					if err := send(b.Context(), server, client, body); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*objects), "ns/object")
			})
		}
	}
}

// discard is an http.ResponseWriter that drops the answer.
type discard struct{ header http.Header }

func (d discard) Header() http.Header       { return d.header }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
