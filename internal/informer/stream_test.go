// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// listOfSwitches has the order of an API server: the metadata follow the items.
const listOfSwitches = `{"apiVersion":"useless.container.training/v1beta1","items":[
	{"apiVersion":"useless.container.training/v1beta1","kind":"Switch","metadata":{"name":"a","managedFields":[{}]},
		"spec":{"position":"up"},"unknown":{"field":[1]}},
	{"metadata":{"name":"b","creationTimestamp":null},"status":{"seenAt":"2026-11-20T09:00:00.123456Z"}}
],"kind":"SwitchList","metadata":{"resourceVersion":"7"}}`

func TestStream(t *testing.T) {
	first, second := v1beta1.Switch{}, v1beta1.Switch{}
	first.APIVersion, first.Kind, first.Name = "useless.container.training/v1beta1", "Switch", "a"
	first.Spec.Position = v1beta1.PositionUp
	second.Name = "b"
	second.Status.SeenAt = new(metav1.NewMicroTime(time.Date(2026, 11, 20, 9, 0, 0, 123456000, time.UTC)))
	for _, c := range []struct {
		reason  string
		status  int
		answer  string
		want    []v1beta1.Switch
		wantErr string // a part of it; empty for no error
	}{
		{"a list with unknown fields", http.StatusOK, listOfSwitches, []v1beta1.Switch{first, second}, ""},
		{"an empty list", http.StatusOK, `{"items":[],"metadata":{"resourceVersion":"7"}}`, nil, ""},
		{"a list of Go without items", http.StatusOK, `{"items":null,"metadata":{"resourceVersion":"7"}}`, nil, ""},
		{"the connection ends", http.StatusOK, listOfSwitches[:300], nil, "decode the list of switches: "},
		{"a refusal", http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no",
			"reason":"Forbidden","code":403}`, nil, "no"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			s, request := serve(t, c.status, c.answer)
			got, err := s.list(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 500})
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("got the error %v, want %q", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if list := got.(*metav1.List); list.ResourceVersion != "7" {
				t.Errorf("got the resourceVersion %q, want 7", list.ResourceVersion)
			}
			items, err := meta.ExtractList(got) // as an informer reads them
			if err != nil {
				t.Fatal(err)
			}
			var switches []v1beta1.Switch
			for _, item := range items {
				switches = append(switches, *item.(*v1beta1.Switch))
			}
			if diff := cmp.Diff(c.want, switches); diff != "" {
				t.Errorf("switches (-want +got):\n%s", diff)
			}
			if query := request.URL.Query(); query.Has("resourceVersion") || query.Get("limit") != "5000" {
				t.Errorf("the request has the query %q, want no resourceVersion and the limit 5000", request.URL.RawQuery)
			}
		})
	}
}

// TestWholeList lists without a limit, as the pager does after a page has expired. It takes the answer for the whole
// list.
func TestWholeList(t *testing.T) {
	s, request := serve(t, http.StatusOK, listOfSwitches)
	if _, err := s.list(t.Context(), metav1.ListOptions{}); err != nil || request.URL.Query().Has("limit") {
		t.Errorf("got the error %v and the query %q, want no limit", err, request.URL.RawQuery)
	}
}

// serve returns a stream of Switches whose API server always sends the same answer, and the last request to it.
func serve(t *testing.T, status int, answer string) (s *stream, last *http.Request) {
	t.Helper()
	last = &http.Request{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		*last = *request
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.AddSpecific(v1beta1.GroupVersion.WithKind("Switch"), v1beta1.GroupVersion.WithResource("switches"),
		v1beta1.GroupVersion.WithResource("switch"), meta.RESTScopeNamespace)
	options := cache.Options{Scheme: scheme, Mapper: mapper, HTTPClient: server.Client()}
	return &stream{
		&rest.Config{Host: server.URL}, options, &v1beta1.Switch{}, cache.TransformStripManagedFields(),
	}, last
}

// TestStreamedKinds checks for which objects a list is streamed.
func TestStreamedKinds(t *testing.T) {
	everything := labels.Everything()
	for _, c := range []struct {
		reason  string
		object  runtime.Object
		options cache.Options
		want    bool
	}{
		{"a custom resource has no binary format", &v1beta1.Switch{}, cache.Options{}, true},
		{"a built-in kind has one", &corev1.Pod{}, cache.Options{}, false},
		{"metadata have one", &metav1.PartialObjectMetadata{}, cache.Options{}, false},
		{"an object has no Go type", &unstructured.Unstructured{}, cache.Options{}, false},
		{"only some of the objects are cached", &v1beta1.Switch{},
			cache.Options{ByObject: map[client.Object]cache.ByObject{&v1beta1.Switch{}: {Label: everything}}}, false},
		{"another kind is cached in part", &v1beta1.Switch{},
			cache.Options{ByObject: map[client.Object]cache.ByObject{&v1beta1.Machine{}: {Label: everything}}}, true},
		{"only one namespace is cached", &v1beta1.Switch{},
			cache.Options{DefaultNamespaces: map[string]cache.Config{"default": {}}}, false},
	} {
		if got := streams(c.object, c.options); got != c.want {
			t.Errorf("%s: got %t, want %t", c.reason, got, c.want)
		}
	}
}
