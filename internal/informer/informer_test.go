// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// TestList lists in pages, as client-go does if the API server does not stream lists. A list must not come from the API
// server's cache.
func TestList(t *testing.T) {
	var requests, lines []string
	lister := consistent(&toolscache.ListWatch{
		ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
			requests = append(requests, "version "+options.ResourceVersion+", from "+options.Continue)
			return &corev1.PodList{}, nil
		},
	}, &corev1.Pod{})
	ctx := log.IntoContext(t.Context(), funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}))
	for _, options := range []metav1.ListOptions{
		{ResourceVersion: "0"},      // the first page of a cached list
		{Continue: "page-2"},        // its second page
		{ResourceVersion: "123456"}, // a list that is at least as new as this version
	} {
		if _, err := lister.ListWithContext(ctx, options); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"version , from ", "version , from page-2", "version 123456, from "}
	if diff := cmp.Diff(want, requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	line := fmt.Sprintf(`"level"=0 "msg"=%q "type"="*v1.Pod"`, notStreamed)
	if diff := cmp.Diff([]string{line, line}, lines); diff != "" {
		t.Errorf("log lines, one for each list (-want +got):\n%s", diff)
	}
}

func TestMerge(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metadata := func(kind string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
	}
	for _, c := range []struct {
		reason        string
		first, second client.Object
		wantErr       string // empty if the options can be merged
	}{
		{"two kinds have two caches", &corev1.Pod{}, &corev1.Secret{}, ""},
		{"two kinds have two caches, even if both are cached as metadata with the same Go type", metadata("Pod"), metadata("Secret"), ""},
		{"a kind has one cache", &corev1.Pod{}, &corev1.Pod{}, "the cache of /v1, Kind=Pod is configured twice"},
		{"a kind has one cache, even if one of the two objects is metadata only", &corev1.Pod{}, metadata("Pod"),
			"the cache of /v1, Kind=Pod is configured twice"},
	} {
		merged, err := Merge(scheme, map[client.Object]cache.ByObject{c.first: {}}, nil,
			map[client.Object]cache.ByObject{c.second: {}})
		if c.wantErr == "" && (err != nil || len(merged) != 2) || c.wantErr != "" && (err == nil || err.Error() != c.wantErr) {
			t.Errorf("%s: got %d kinds and error %v, want error %q", c.reason, len(merged), err, c.wantErr)
		}
	}
}
