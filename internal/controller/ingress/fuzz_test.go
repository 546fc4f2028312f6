// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"container.training/useless/api/useless/v1beta1"
)

// pairs parses annotations, one per line.
func pairs(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			all[key] = value
		}
	}
	return all
}

// FuzzDecide merges configured annotations into random ones, with random managed fields. Only configured and owned
// annotations may change. A second decision must find nothing to do.
func FuzzDecide(f *testing.F) {
	const owned = `{"f:metadata":{"f:annotations":{"f:old":{},"f:foo":{}}}}`
	f.Add("foo=baz\nold=1\nelse=2", "foo=bar", []byte(owned))
	f.Add(v1beta1.IngressAnnotationsAnnotation+"="+v1beta1.IngressAnnotationsDisabled+"\nfoo=bar", "foo=bar",
		[]byte(owned))
	f.Add("", "foo=\na=b", []byte(`{"f:metadata":{"f:annotations":{".":{},"k:{\"a\":1}":{},"v:1":{},"i:3":{}}}}`))
	f.Add("foo=bar", "", []byte(`[`))
	f.Fuzz(func(t *testing.T, has, wants string, managed []byte) {
		var configured Annotations
		for pair := range strings.SplitSeq(wants, "\n") {
			_ = configured.Set(pair) // the flag rejects invalid pairs
		}
		before := pairs(has)
		p := decide(newIngress(maps.Clone(before), ours(string(managed))), configured)
		checkPlan(t, p, before, configured, annotationsOf(ours(string(managed))))
		after := applied(p, before)
		again := decide(newIngress(after, ours(fieldsOf(t, p.annotations))), configured)
		if !again.empty() {
			t.Errorf("the second plan is not empty: %+v, then %+v", p, again)
		}
	})
}

func checkPlan(t *testing.T, p plan, before map[string]string, configured Annotations, owned []string) {
	t.Helper()
	disabled := before[v1beta1.IngressAnnotationsAnnotation] == v1beta1.IngressAnnotationsDisabled
	for _, key := range p.set {
		if value, ok := configured[key]; !ok || disabled || before[key] == value && hasKey(before, key) {
			t.Errorf("the plan sets %q to %q; configured %v, existing %v", key, value, configured, before)
		}
	}
	for _, key := range p.remove {
		if hasKey(configured, key) && !disabled || !slices.Contains(owned, key) || slices.Contains(p.set, key) {
			t.Errorf("the plan removes %q; owned %v, configured %v", key, owned, configured)
		}
	}
	if !slices.IsSorted(p.set) {
		t.Errorf("the set list is not sorted: %q", p.set)
	}
}

func hasKey[M ~map[string]string](all M, key string) bool {
	_, ok := all[key]
	return ok
}

// applied returns the annotations after a server-side apply of the plan.
func applied(p plan, before map[string]string) map[string]string {
	after := maps.Clone(before)
	for _, key := range p.remove {
		delete(after, key)
	}
	maps.Copy(after, p.annotations)
	return after
}

// fieldsOf returns the fieldsV1 of the owner of these annotations.
func fieldsOf(t *testing.T, annotations map[string]string) string {
	t.Helper()
	fields := map[string]any{}
	for key := range annotations {
		fields["f:"+key] = struct{}{}
	}
	text, err := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:annotations": fields}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// FuzzAnnotations gives the flag random values. The API server must accept every value that the flag accepts. No
// accepted value may be lost.
func FuzzAnnotations(f *testing.F) {
	for _, pair := range []string{"foo=bar", "example.com/foo=", "=", "Foo=a=b",
		"kubectl.kubernetes.io/last-applied-configuration={}", "useless.container.training/paused=true"} {
		f.Add(pair, "foo=baz")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		var annotations Annotations
		for _, pair := range []string{first, second} {
			before := maps.Clone(annotations)
			if err := annotations.Set(pair); err != nil {
				if diff := cmp.Diff(before, annotations); diff != "" {
					t.Errorf("Set returned %v, but changed the annotations:\n%s", err, diff)
				}
				continue
			}
			key, value, _ := strings.Cut(pair, "=")
			if annotations[key] != value || before[key] != value && hasKey(before, key) {
				t.Errorf("after Set(%q), the annotations are %q", pair, annotations)
			}
		}
		if errs := validation.ValidateAnnotations(annotations,
			field.NewPath("metadata", "annotations")); len(errs) > 0 {
			t.Errorf("the flag accepts annotations that the API server rejects: %v", errs)
		}
		if text := annotations.String(); len(annotations) > 0 && !strings.Contains(text, "=") {
			t.Errorf("String of %v returns %q", annotations, text)
		}
	})
}
