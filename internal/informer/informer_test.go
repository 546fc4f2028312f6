// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"fmt"
	"strings"
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

func TestMergeRejectsSecondOptionsForKind(t *testing.T) {
	pods := func() map[client.Object]cache.ByObject { return map[client.Object]cache.ByObject{&corev1.Pod{}: {}} }
	secrets := map[client.Object]cache.ByObject{&corev1.Secret{}: {}}
	if merged, err := Merge(pods(), nil, secrets); err != nil || len(merged) != 2 {
		t.Errorf("two kinds: got %d, %v", len(merged), err)
	}
	if _, err := Merge(pods(), secrets, pods()); err == nil || !strings.Contains(err.Error(), "the cache of *v1.Pod is configured twice") {
		t.Errorf("the same kind twice: got %v", err)
	}
}
