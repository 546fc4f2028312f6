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

// pairs are annotations, one a line.
func pairs(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			all[key] = value
		}
	}
	return all
}

// FuzzDecide merges what is configured into any annotations, whatever the API server's record of who owns them looks like.
// Nothing changes but what is configured and what was the operator's, and once is enough.
func FuzzDecide(f *testing.F) {
	const owned = `{"f:metadata":{"f:annotations":{"f:old":{},"f:foo":{}}}}`
	f.Add("foo=baz\nold=1\nelse=2", "foo=bar", []byte(owned))
	f.Add(v1beta1.IngressAnnotationsAnnotation+"="+v1beta1.IngressAnnotationsDisabled+"\nfoo=bar", "foo=bar", []byte(owned))
	f.Add("", "foo=\na=b", []byte(`{"f:metadata":{"f:annotations":{".":{},"k:{\"a\":1}":{},"v:1":{},"i:3":{}}}}`))
	f.Add("foo=bar", "", []byte(`[`))
	f.Fuzz(func(t *testing.T, has, wants string, managed []byte) {
		var configured Annotations
		for pair := range strings.SplitSeq(wants, "\n") {
			_ = configured.Set(pair) // what the flag does not take, nobody can configure
		}
		before := pairs(has)
		p := decide(an(maps.Clone(before), ours(string(managed))), configured)
		checkPlan(t, p, before, configured, annotationsOf(ours(string(managed))))
		after := applied(p, before)
		again := decide(an(after, ours(fieldsOf(t, p.annotations))), configured)
		if !again.empty() {
			t.Errorf("once is not enough: %+v, then %+v", p, again)
		}
	})
}

func checkPlan(t *testing.T, p plan, before map[string]string, configured Annotations, owned []string) {
	t.Helper()
	disabled := before[v1beta1.IngressAnnotationsAnnotation] == v1beta1.IngressAnnotationsDisabled
	for _, key := range p.set {
		if value, ok := configured[key]; !ok || disabled || before[key] == value && hasKey(before, key) {
			t.Errorf("sets %q to %q, of %v in %v", key, value, configured, before)
		}
	}
	for _, key := range p.remove {
		if hasKey(configured, key) && !disabled || !slices.Contains(owned, key) || slices.Contains(p.set, key) {
			t.Errorf("removes %q, of %v, where %v are configured", key, owned, configured)
		}
	}
	if !slices.IsSorted(p.set) {
		t.Errorf("sets in any order: %q", p.set)
	}
}

func hasKey[M ~map[string]string](all M, key string) bool {
	_, ok := all[key]
	return ok
}

// applied is what the API server makes of annotations to which a plan is applied.
func applied(p plan, before map[string]string) map[string]string {
	after := maps.Clone(before)
	for _, key := range p.remove {
		delete(after, key)
	}
	maps.Copy(after, p.annotations)
	return after
}

// fieldsOf is how the API server writes down whose annotations are.
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

// FuzzAnnotations gives the flag any value. What it takes, the API server takes on an Ingress, and nothing of it is lost.
func FuzzAnnotations(f *testing.F) {
	for _, pair := range []string{"foo=bar", "example.com/foo=", "=", "Foo=a=b", "kubectl.kubernetes.io/last-applied-configuration={}", "useless.container.training/paused=true"} {
		f.Add(pair, "foo=baz")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		var annotations Annotations
		for _, pair := range []string{first, second} {
			before := maps.Clone(annotations)
			if err := annotations.Set(pair); err != nil {
				if diff := cmp.Diff(before, annotations); diff != "" {
					t.Errorf("%v, and yet:\n%s", err, diff)
				}
				continue
			}
			key, value, _ := strings.Cut(pair, "=")
			if annotations[key] != value || before[key] != value && hasKey(before, key) {
				t.Errorf("%q gives %q", pair, annotations)
			}
		}
		if errs := validation.ValidateAnnotations(annotations, field.NewPath("metadata", "annotations")); len(errs) > 0 {
			t.Errorf("taken, and refused by the API server: %v", errs)
		}
		if text := annotations.String(); len(annotations) > 0 && !strings.Contains(text, "=") {
			t.Errorf("%v is shown as %q", annotations, text)
		}
	})
}
