// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
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
	const last = `{"kind":"SwitchList","items":null,"metadata":{"resourceVersion":"7"}}`
	nextPage := strings.Replace(listOfSwitches, `"7"`, `"7","continue":"next"`, 1)
	for _, c := range []struct {
		reason string
		pages  []string
		want   []v1beta1.Switch
	}{
		{"a list with unknown fields", []string{listOfSwitches}, []v1beta1.Switch{first, second}},
		{"a list without items", []string{last}, nil},
		{"three pages", []string{nextPage, nextPage, last}, []v1beta1.Switch{first, second, first, second}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			s, requests := serve(t, http.StatusOK, c.pages...)
			got, err := s.list(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 500})
			if err != nil {
				t.Fatal(err)
			}
			if list := got.(*metav1.List); list.ResourceVersion != "7" || list.Continue != "" {
				t.Errorf("got the metadata %+v, want only the resourceVersion 7", list.ListMeta)
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
			want := []string{"limit=1000", "continue=next&limit=1000", "continue=next&limit=1000"}[:len(c.pages)]
			if diff := cmp.Diff(want, *requests); diff != "" {
				t.Errorf("queries (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStreamErrors checks answers that are not a complete list. An informer must not use them.
func TestStreamErrors(t *testing.T) {
	for _, c := range []struct {
		reason string
		status int
		answer string
		want   string // a part of the error
	}{
		{"the connection ends", http.StatusOK, listOfSwitches[:300], "unexpected EOF"},
		{"another kind", http.StatusOK, `{"kind":"Status","status":"Failure"}`, `got the kind "Status"`},
		{"no version", http.StatusOK, `{"kind":"SwitchList","items":[]}`, `the resourceVersion ""`},
		{"items is not a list", http.StatusOK, `{"items":"x"}`, `items is x, want a list`},
		{"a refusal", http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure",
			"message":"the user must not list","reason":"Forbidden","code":403}`, "the user must not list"},
	} {
		s, _ := serve(t, c.status, c.answer)
		_, err := s.list(t.Context(), metav1.ListOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got the error %v, want %q", c.reason, err, c.want)
		}
		if forbidden := c.status == http.StatusForbidden; apierrors.IsForbidden(err) != forbidden {
			t.Errorf("%s: IsForbidden returned %t for the error %v", c.reason, !forbidden, err)
		}
	}
}

// serve returns a stream of Switches, and the queries that its API server has received. The API server sends one page
// for each request.
func serve(t *testing.T, status int, pages ...string) (s *stream, queries *[]string) {
	t.Helper()
	queries = &[]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(pages[len(*queries)]))
		*queries = append(*queries, request.URL.RawQuery)
	}))
	t.Cleanup(server.Close)
	mapper := meta.NewDefaultRESTMapper(nil)
	kind := v1beta1.GroupVersion.WithKind("Switch")
	mapper.AddSpecific(kind, v1beta1.GroupVersion.WithResource("switches"), v1beta1.GroupVersion.WithResource("switch"),
		meta.RESTScopeNamespace)
	options := cache.Options{Scheme: newScheme(t), Mapper: mapper, HTTPClient: server.Client()}
	return &stream{
		&rest.Config{Host: server.URL}, options, kind, reflect.TypeFor[v1beta1.Switch](), cache.TransformStripManagedFields(),
	}, queries
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// TestStreamedKinds checks for which objects a list is streamed.
func TestStreamedKinds(t *testing.T) {
	everything := labels.Everything()
	dynamic := &unstructured.Unstructured{}
	dynamic.SetGroupVersionKind(v1beta1.GroupVersion.WithKind("Switch"))
	for _, c := range []struct {
		reason  string
		object  runtime.Object
		options cache.Options
		want    bool
	}{
		{"a custom resource has no binary format", &v1beta1.Switch{}, cache.Options{}, true},
		{"a built-in kind has one", &corev1.Pod{}, cache.Options{}, false},
		{"metadata have one", &metav1.PartialObjectMetadata{}, cache.Options{}, false},
		{"an object has no Go type", dynamic, cache.Options{}, false},
		{"only some of the objects are cached", &v1beta1.Switch{},
			cache.Options{ByObject: map[client.Object]cache.ByObject{dynamic: {Label: everything}}}, false},
		{"another kind is cached in part", &v1beta1.Switch{},
			cache.Options{ByObject: map[client.Object]cache.ByObject{&v1beta1.Machine{}: {Label: everything}}}, true},
		{"only one namespace is cached", &v1beta1.Switch{},
			cache.Options{DefaultNamespaces: map[string]cache.Config{"default": {}}}, false},
	} {
		c.options.Scheme = newScheme(t)
		if _, _, got := streamed(c.object, c.options); got != c.want {
			t.Errorf("%s: got %t, want %t", c.reason, got, c.want)
		}
	}
}

// TestInformerLists starts an informer with streamed lists. It must begin with a list, although the server could send
// all objects in a watch.
func TestInformerLists(t *testing.T) {
	s, queries := serve(t, http.StatusOK, listOfSwitches)
	lw := listing{&toolscache.ListWatch{
		ListWithContextFunc: s.list,
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return watch.NewFake(), nil
		},
	}}
	informer := toolscache.NewSharedIndexInformer(lw, &v1beta1.Switch{}, 0, nil)
	go informer.RunWithContext(t.Context())
	if !toolscache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	if keys := informer.GetStore().ListKeys(); len(keys) != 2 || len(*queries) != 1 {
		t.Errorf("got the objects %v and %d lists, want 2 objects and 1 list", keys, len(*queries))
	}
}
