// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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

// FuzzDecide makes plans for random annotations with random managed fields, and executes them. It uses two
// configurations, and then no configuration. Only configured and owned annotations may change. After each write, the
// same configuration must cause no other write. In the end, the values of other managers must be restored.
func FuzzDecide(f *testing.F) {
	const owned = `{"f:metadata":{"f:annotations":{"f:old":{},"f:foo":{}}}}`
	const saved = `{"f:metadata":{"f:annotations":{"f:old":{},"f:foo":{},"f:` + original + `":{}}}}`
	f.Add("foo=baz\nold=1\nelse=2", "foo=bar", "", []byte(owned), []byte(``), byte(0))
	f.Add(v1beta1.IngressAnnotationsAnnotation+"="+v1beta1.IngressAnnotationsDisabled+"\nfoo=bar", "foo=bar", "foo=bar",
		[]byte(owned), []byte(``), byte(1))
	f.Add("", "foo=\na=b", "a=c", []byte(`{"f:metadata":{"f:annotations":{".":{},"k:{\"a\":1}":{},"v:1":{},"i:3":{}}}}`),
		[]byte(owned), byte(2))
	f.Add("foo=bar", "", "foo=baz", []byte(`[`), []byte(`{`), byte(3))
	f.Add("foo=bar\nold=2\n"+original+`={"foo":"x","old":null}`, "foo=baz", "old=2", []byte(``), []byte(saved), byte(0))
	f.Fuzz(func(t *testing.T, has, wants, wantsLater string, applied, updated []byte, policies byte) {
		w := newWorld(has, string(applied), string(updated))
		for i, text := range []string{wants, wantsLater, ""} {
			o := Options{Annotations: valid(text)}
			if policies>>i&1 == 1 {
				o.Policy = PolicyIfNotPresent
			}
			w.reconcile(t, o)
		}
		for key, theirs := range w.theirs {
			if got, ok := w.values[key]; !ok || got != theirs {
				t.Errorf("%q is %q (present: %t) in the end, want %q", key, got, ok, theirs)
			}
		}
	})
}

// valid parses annotations, one per line. It drops the annotations that the flag rejects.
func valid(lines string) (all Annotations) {
	for pair := range strings.SplitSeq(lines, "\n") {
		_ = all.Set(pair)
	}
	return all
}

// world simulates the metadata of an Ingress in an API server.
type world struct {
	values           map[string]string
	applied, updated sets.Set[string] // the operator's managed fields

	theirs map[string]string // the values of other managers that the operator must restore
}

// newWorld returns a world with these annotations. applied and updated are the operator's fieldsV1 for server-side
// apply and for merge patches. From both, newWorld drops absent annotations. From applied, it also drops annotations
// with a saved value, because only merge patches save values.
func newWorld(has, applied, updated string) *world {
	w := &world{values: pairs(has), theirs: map[string]string{}}
	maps.DeleteFunc(w.values, func(key, _ string) bool { return !utf8.ValidString(key) })
	existing := sets.KeySet(w.values)
	w.updated = sets.New(annotationsOf(ours(updated))...).Intersection(existing)
	w.applied = sets.New(annotationsOf(ours(applied))...).Intersection(existing).
		Difference(sets.KeySet(parseOriginals(w.values[original])))
	s := stateOf(w.ingress())
	for key := range w.values {
		if theirs := s.theirs(key); theirs != nil && key != original {
			w.theirs[key] = *theirs
		}
	}
	return w
}

func (w *world) ingress() *networkingv1.Ingress {
	fields := func(keys sets.Set[string]) string {
		all := map[string]any{}
		for key := range keys {
			all["f:"+key] = struct{}{}
		}
		text, err := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:annotations": all}})
		if err != nil {
			panic(err) // cannot happen: a map of strings is always valid
		}
		return string(text)
	}
	return newIngress(maps.Clone(w.values), ours(fields(w.applied)),
		entry(string(fieldManager), metav1.ManagedFieldsOperationUpdate, fields(w.updated)))
}

// reconcile makes a plan like the operator, and executes it like an API server.
func (w *world) reconcile(t *testing.T, o Options) {
	t.Helper()
	before := w.ingress()
	p := newPlan(before, o)
	checkPlan(t, p, before, o)
	for _, key := range p.unsaved {
		delete(w.theirs, key)
	}
	switch {
	case p.isEmpty():
		return
	case len(p.patch) > 0:
		w.mergePatch(p.patch)
	default:
		w.apply(p.apply)
	}
	if again := newPlan(w.ingress(), o); !again.isEmpty() {
		t.Errorf("the second plan is not empty: %+v, then %+v", p, again)
	}
}

// mergePatch executes a merge patch of the operator. A changed value belongs to its managed fields of merge patches.
func (w *world) mergePatch(patch map[string]*string) {
	for key, value := range patch {
		if old, ok := w.values[key]; value != nil && ok && old == *value {
			continue
		}
		delete(w.values, key)
		w.applied.Delete(key)
		w.updated.Delete(key)
		if value != nil {
			w.values[key] = *value
			w.updated.Insert(key)
		}
	}
}

// apply executes a server-side apply of the operator. It deletes the annotations that only the previous apply has set.
func (w *world) apply(annotations map[string]string) {
	for key := range w.applied.Difference(sets.KeySet(annotations)).Difference(w.updated) {
		delete(w.values, key)
	}
	for key, value := range annotations {
		if w.values[key] != value {
			w.updated.Delete(key)
		}
	}
	maps.Copy(w.values, annotations)
	w.applied = sets.KeySet(annotations)
}

// checkPlan checks that a plan sets only wanted annotations, and removes, restores or releases only owned ones.
func checkPlan(t *testing.T, p plan, ingress *networkingv1.Ingress, o Options) {
	t.Helper()
	before, owned := ingress.Annotations, stateOf(ingress).own
	wanted := o.Annotations
	if before[v1beta1.IngressAnnotationsAnnotation] == v1beta1.IngressAnnotationsDisabled {
		wanted = nil
	}
	for _, key := range p.set {
		if value, ok := wanted[key]; !ok || before[key] == value && hasKey(before, key) {
			t.Errorf("the plan sets %q to %q; wanted %v, existing %v", key, value, wanted, before)
		}
	}
	if foreign := sets.KeySet(before).Difference(owned); o.Policy == PolicyIfNotPresent && foreign.HasAny(p.set...) {
		t.Errorf("the plan sets %q, but others have set %v", p.set, foreign)
	}
	undone := slices.Concat(p.remove, p.restore, p.release)
	if !owned.HasAll(undone...) || sets.New(p.set...).HasAny(undone...) {
		t.Errorf("the plan removes %q; owned %v, configured %v", undone, owned, o.Annotations)
	}
	if !slices.IsSorted(p.set) {
		t.Errorf("the set list is not sorted: %q", p.set)
	}
}

func hasKey[M ~map[string]string](all M, key string) bool {
	_, ok := all[key]
	return ok
}

// fieldsOf returns the fieldsV1 of a manager that owns these annotations.
func fieldsOf(t *testing.T, keys []string) string {
	t.Helper()
	fields := map[string]any{}
	for _, key := range keys {
		fields["f:"+key] = struct{}{}
	}
	text, err := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:annotations": fields}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// FuzzAnnotations passes random values to the flag. The API server must accept every value that the flag accepts.
// Annotations must contain every accepted value.
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
	})
}
