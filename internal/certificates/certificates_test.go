// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// TestExposeExpiration reads the metric before and after a Source has loaded a certificate.
func TestExposeExpiration(t *testing.T) {
	registry, source := prometheus.NewRegistry(), &Source{}
	if err := ExposeExpiration(registry, source.GetCertificate); err != nil {
		t.Fatal(err)
	}
	if families, err := registry.Gather(); err != nil || len(families) > 0 {
		t.Errorf("without a certificate: got %v and error %v, want no metric", families, err)
	}
	source.current.Store(&tls.Certificate{Leaf: &x509.Certificate{NotAfter: time.Unix(1_800_000_000, 0)}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetMetric()[0].GetGauge().GetValue() != 1_800_000_000 {
		t.Errorf("got %v, want the time 1800000000", families)
	}
}

// roundTripper is a function that implements http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// FuzzNarrow sends random requests through a narrowTransport. If a request lists a resource in names, its field
// selector must select the object name that names has for this resource. Other requests must not change.
func FuzzNarrow(f *testing.F) {
	f.Add(http.MethodGet, "/api/v1/namespaces/useless-system/secrets", "watch=true&fieldSelector=type%3DOpaque")
	f.Add(http.MethodGet, "/api/v1/namespaces/secrets", "")
	f.Add(http.MethodGet, "/api/v1/namespaces/a/secrets/b", "%zz")
	f.Add(http.MethodPut, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		request := &http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{}}
		var sent *http.Request
		transport := narrowTransport{roundTripper(func(r *http.Request) (*http.Response, error) {
			sent = r
			return nil, nil
		})}
		if _, err := transport.RoundTrip(request); err != nil || sent == nil {
			t.Fatalf("the request was not sent: %v", err)
		}
		if request.URL.Path != path || request.URL.RawQuery != query {
			t.Errorf("the caller's request was changed to %s", request.URL)
		}
		if sent.URL.Path != path || sent.Method != method {
			t.Errorf("%s %s was sent as %s %s", method, path, sent.Method, sent.URL)
		}
		want := request.URL.Query()
		if name := onlyName(path); name != "" && method == http.MethodGet {
			want["fieldSelector"] = []string{"metadata.name=" + name}
		} else if sent.URL.RawQuery != query {
			t.Errorf("query %q was sent as %q", query, sent.URL.RawQuery)
		}
		if diff := cmp.Diff(want, sent.URL.Query()); diff != "" {
			t.Errorf("query of %s %s (-want +got):\n%s", method, path, diff)
		}
	})
}

// onlyName returns the name that a list at a path must select, or "" if the list may select all objects.
func onlyName(path string) string {
	for resource, name := range names {
		if strings.HasSuffix(strings.TrimRight(path, "/"), "/"+resource) || strings.Trim(path, "/") == resource {
			return name
		}
	}
	return ""
}
