// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/useless/v1beta1"
)

// newIngress returns an Ingress with these annotations.
func newIngress(annotations map[string]string, managed ...metav1.ManagedFieldsEntry) *networkingv1.Ingress {
	return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web", UID: "1", Annotations: annotations, ManagedFields: managed,
	}}
}

// withClass returns an Ingress of a class.
func withClass(ingress *networkingv1.Ingress, class string) *networkingv1.Ingress {
	ingress.Spec.IngressClassName = &class
	return ingress
}

// entry returns an entry of metadata.managedFields.
func entry(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: operation, APIVersion: "networking.k8s.io/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields),
	}
}

// ours returns the operator's entry for server-side apply.
func ours(fields string) metav1.ManagedFieldsEntry {
	return entry(string(fieldManager), metav1.ManagedFieldsOperationApply, fields)
}

const original = v1beta1.OriginalAnnotationsAnnotation

// patched returns the operator's entry for merge patches, with the saved values and these annotations.
func patched(t *testing.T, keys ...string) metav1.ManagedFieldsEntry {
	t.Helper()
	return entry(string(fieldManager), metav1.ManagedFieldsOperationUpdate, fieldsOf(t, append(keys, original)))
}

// TestDecide has the cases without saved values. Its plans use server-side apply.
func TestDecide(t *testing.T) {
	const owned = `{"f:metadata":{"f:annotations":{"f:example.com/old":{},"f:foo":{}}}}`
	both := Annotations{"foo": "bar", "example.com/old": "1"}
	fooBar := Annotations{"foo": "bar"}
	cases := map[string]struct {
		reason     string
		ingress    *networkingv1.Ingress
		configured Annotations
		want       plan
	}{
		"New": {
			reason:     "configured annotations are set if they are absent",
			ingress:    newIngress(nil),
			configured: Annotations{"foo": "bar", "a": "b"},
			want: plan{annotations: Annotations{"foo": "bar", "a": "b"}, set: []string{"a", "foo"},
				apply: Annotations{"foo": "bar", "a": "b"}},
		},
		"Done": {
			reason:     "existing annotations are not set again",
			ingress:    newIngress(map[string]string{"foo": "bar", "example.com/old": "1"}, ours(owned)),
			configured: both,
			want:       plan{annotations: both, apply: both},
		},
		"NewValue": {
			reason:     "a configured value that changes is set, and the operator's own old value is not saved",
			ingress:    newIngress(map[string]string{"foo": "baz", "example.com/old": "1"}, ours(owned)),
			configured: both,
			want:       plan{annotations: both, set: []string{"foo"}, apply: both},
		},
		"OthersValue": {
			reason: "an annotation that another manager has set to the same value is not set",
			ingress: newIngress(map[string]string{"foo": "bar"},
				entry("kubectl", metav1.ManagedFieldsOperationUpdate,
					`{"f:metadata":{"f:annotations":{".":{},"f:foo":{}}}}`)),
			configured: fooBar,
			want:       plan{annotations: fooBar},
		},
		"OthersValueWithWrite": {
			reason:     "a write of another annotation does not make the operator own the value of another manager",
			ingress:    newIngress(map[string]string{"foo": "bar"}),
			configured: both,
			want: plan{annotations: both, set: []string{"example.com/old"},
				apply: Annotations{"example.com/old": "1"}},
		},
		"EmptyValue": {
			reason:     "an empty value is not the same as an absent annotation",
			ingress:    newIngress(nil),
			configured: Annotations{"foo": ""},
			want: plan{annotations: Annotations{"foo": ""}, set: []string{"foo"},
				apply: Annotations{"foo": ""}},
		},
		"Dropped": {
			reason:     "an owned annotation that is no longer configured is removed; annotations of others stay",
			ingress:    newIngress(map[string]string{"foo": "bar", "example.com/old": "1", "other": "2"}, ours(owned)),
			configured: fooBar,
			want:       plan{annotations: fooBar, remove: []string{"example.com/old"}, apply: fooBar},
		},
		"NoneConfigured": {
			reason:  "without a configuration, all owned annotations are removed",
			ingress: newIngress(map[string]string{"foo": "bar", "example.com/old": "1"}, ours(owned)),
			want:    plan{remove: []string{"example.com/old", "foo"}},
		},
		"NoneConfiguredShared": {
			reason: "an annotation that another manager also applies is released, but not removed",
			ingress: newIngress(map[string]string{"foo": "bar", "example.com/old": "1"}, ours(owned),
				entry("argocd", metav1.ManagedFieldsOperationApply, fieldsOf(t, []string{"foo"}))),
			want: plan{remove: []string{"example.com/old"}, release: []string{"foo"}},
		},
		"NothingOwned": {
			reason:  "an Ingress without owned annotations needs no change",
			ingress: newIngress(map[string]string{"foo": "bar"}),
		},
		"OptedOut": {
			reason: "an opt-out removes the owned annotations",
			ingress: newIngress(map[string]string{"foo": "bar", "example.com/old": "1",
				v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled}, ours(owned)),
			configured: both,
			want:       plan{remove: []string{"example.com/old", "foo"}},
		},
		"OptedOutEarly": {
			reason: "an Ingress that opted out at its creation needs no change",
			ingress: newIngress(map[string]string{
				v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled,
			}),
			configured: fooBar,
		},
		"OtherMode": {
			reason:     "only the value Disabled opts out",
			ingress:    newIngress(map[string]string{v1beta1.IngressAnnotationsAnnotation: "Enabled"}),
			configured: fooBar,
			want:       plan{annotations: fooBar, set: []string{"foo"}, apply: fooBar},
		},
		"UpdateEntry": {
			reason: "an annotation in the operator's entry for merge patches is not owned without a saved value",
			ingress: newIngress(map[string]string{"foo": "bar"},
				entry(string(fieldManager), metav1.ManagedFieldsOperationUpdate, owned)),
		},
		"Unreadable": {
			reason:  "the operator owns no annotations in an entry with invalid fieldsV1",
			ingress: newIngress(map[string]string{"foo": "bar"}, ours("{")),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { checkDecision(t, c.reason, c.ingress, Options{Annotations: c.configured}, c.want) })
	}
}

// checkDecision checks a plan, and that decide does not change the Ingress.
func checkDecision(t *testing.T, reason string, ingress *networkingv1.Ingress, options Options, want plan) {
	t.Helper()
	before := ingress.DeepCopy()
	got := decide(ingress, options, history{}, now).plan
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(plan{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", reason, diff)
	}
	if diff := cmp.Diff(before, ingress); diff != "" {
		t.Errorf("decide has changed the Ingress (-before +after):\n%s", diff)
	}
}

// TestDecideSaves has the cases in which the operator overwrites or restores a value of another manager.
func TestDecideSaves(t *testing.T) {
	disabled := map[string]string{v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled}
	fooBar, fooB := Annotations{"foo": "bar"}, Annotations{"foo": "bar", "b": "2"}
	// The state after the operator has overwritten foo: x.
	overwritten := map[string]string{"foo": "bar", original: `{"foo":"x"}`}
	tooLarge := strings.Repeat("x", maxOriginals)
	const none = "none" // stands for nil in patches
	cases := map[string]struct {
		reason     string
		values     []map[string]string // merged
		managed    []metav1.ManagedFieldsEntry
		configured Annotations
		want       plan
		patch      map[string]string
	}{
		"Overwrite": {
			reason:     "an overwritten value is saved in the same request",
			values:     []map[string]string{{"foo": "x"}},
			configured: fooBar,
			want:       plan{annotations: fooBar, set: []string{"foo"}},
			patch:      map[string]string{"foo": "bar", original: `{"foo":"x"}`},
		},
		"OverwriteEmpty": {
			reason:     "an empty value is saved",
			values:     []map[string]string{{"foo": ""}},
			configured: fooBar,
			want:       plan{annotations: fooBar, set: []string{"foo"}},
			patch:      map[string]string{"foo": "bar", original: `{"foo":""}`},
		},
		"OverwriteAndSet": {
			reason:     "annotations that were absent are set in the same request, and are saved as null",
			values:     []map[string]string{{"foo": "<x>"}},
			configured: fooB,
			want:       plan{annotations: fooB, set: []string{"b", "foo"}},
			patch:      map[string]string{"b": "2", "foo": "bar", original: `{"b":null,"foo":"<x>"}`},
		},
		"Overwritten": {
			reason:     "an overwritten annotation is not set again",
			values:     []map[string]string{overwritten},
			managed:    []metav1.ManagedFieldsEntry{patched(t, "foo")},
			configured: fooBar,
			want:       plan{annotations: fooBar},
		},
		"NewValue": {
			reason:     "a configured value that changes does not replace the saved value",
			values:     []map[string]string{overwritten},
			managed:    []metav1.ManagedFieldsEntry{patched(t, "foo")},
			configured: Annotations{"foo": "baz"},
			want:       plan{annotations: Annotations{"foo": "baz"}, set: []string{"foo"}},
			patch:      map[string]string{"foo": "baz"},
		},
		"Reverted": {
			reason:     "if another manager has changed the annotation, the newer value is saved",
			values:     []map[string]string{overwritten, {"foo": "y"}},
			managed:    []metav1.ManagedFieldsEntry{patched(t)},
			configured: fooBar,
			want:       plan{annotations: fooBar, set: []string{"foo"}},
			patch:      map[string]string{"foo": "bar", original: `{"foo":"y"}`},
		},
		"RemovedByOther": {
			reason:     "if another manager has removed the annotation, there is nothing to restore",
			values:     []map[string]string{{original: `{"foo":"x"}`}},
			managed:    []metav1.ManagedFieldsEntry{patched(t)},
			configured: fooBar,
			want:       plan{annotations: fooBar, set: []string{"foo"}},
			patch:      map[string]string{"foo": "bar", original: `{"foo":null}`},
		},
		"SharedNewValue": {
			reason: "a value that another manager also applies is saved when it is overwritten",
			values: []map[string]string{{"foo": "bar"}},
			managed: []metav1.ManagedFieldsEntry{ours(fieldsOf(t, []string{"foo"})),
				entry("argocd", metav1.ManagedFieldsOperationApply, fieldsOf(t, []string{"foo"}))},
			configured: Annotations{"foo": "baz"},
			want:       plan{annotations: Annotations{"foo": "baz"}, set: []string{"foo"}},
			patch:      map[string]string{"foo": "baz", original: `{"foo":"bar"}`},
		},
		"Dropped": {
			reason:  "the saved value is restored, and the annotation that stored it is removed",
			values:  []map[string]string{overwritten},
			managed: []metav1.ManagedFieldsEntry{patched(t, "foo")},
			want:    plan{restore: []string{"foo"}},
			patch:   map[string]string{"foo": "x", original: none},
		},
		"OptedOut": {
			reason:     "an opt-out restores the saved value and removes the other annotations",
			values:     []map[string]string{overwritten, {"b": "2", original: `{"b":null,"foo":"x"}`}, disabled},
			managed:    []metav1.ManagedFieldsEntry{patched(t, "foo", "b")},
			configured: fooB,
			want:       plan{restore: []string{"foo"}, remove: []string{"b"}},
			patch:      map[string]string{"b": none, "foo": "x", original: none},
		},
		"DroppedApplied": {
			reason: "one merge patch restores an annotation, and removes another that was set by server-side apply",
			values: []map[string]string{overwritten, {"b": "2"}},
			managed: []metav1.ManagedFieldsEntry{
				patched(t, "foo"), ours(fieldsOf(t, []string{"b"}))},
			want:  plan{restore: []string{"foo"}, remove: []string{"b"}},
			patch: map[string]string{"b": none, "foo": "x", original: none},
		},
		"Replaced": {
			reason:     "one request restores a value and sets another annotation",
			values:     []map[string]string{overwritten},
			managed:    []metav1.ManagedFieldsEntry{patched(t, "foo")},
			configured: Annotations{"b": "2"},
			want:       plan{annotations: Annotations{"b": "2"}, set: []string{"b"}, restore: []string{"foo"}},
			patch:      map[string]string{"b": "2", "foo": "x", original: `{"b":null}`},
		},
		"DroppedChanged": {
			reason:  "a value stays if another manager has changed it after the operator",
			values:  []map[string]string{overwritten, {"foo": "y"}},
			managed: []metav1.ManagedFieldsEntry{patched(t)},
			patch:   map[string]string{original: none},
		},
		"DroppedShared": {
			reason: "a value stays if another manager also applies it",
			values: []map[string]string{overwritten},
			managed: []metav1.ManagedFieldsEntry{patched(t, "foo"),
				entry("argocd", metav1.ManagedFieldsOperationApply, fieldsOf(t, []string{"foo"}))},
			patch: map[string]string{original: none},
		},
		"DroppedSameValue": {
			reason:  "a value that already equals the saved value stays",
			values:  []map[string]string{overwritten, {"foo": "x"}},
			managed: []metav1.ManagedFieldsEntry{patched(t, "foo")},
			patch:   map[string]string{original: none},
		},
		"SharedWithSaved": {
			reason: "a merge patch cannot release an annotation, so the plan is empty",
			values: []map[string]string{overwritten, {"b": "2"}},
			managed: []metav1.ManagedFieldsEntry{patched(t, "foo"), ours(fieldsOf(t, []string{"b"})),
				entry("argocd", metav1.ManagedFieldsOperationApply, fieldsOf(t, []string{"b"}))},
			configured: fooBar,
			want:       plan{annotations: fooBar},
		},
		"Restored": {
			reason:  "the operator does not own a restored value",
			values:  []map[string]string{{"foo": "x"}},
			managed: []metav1.ManagedFieldsEntry{patched(t, "foo")},
		},
		"Edited": {
			reason:  "saved values that another manager has changed are ignored",
			values:  []map[string]string{overwritten},
			managed: []metav1.ManagedFieldsEntry{entry(string(fieldManager), metav1.ManagedFieldsOperationUpdate, fieldsOf(t, []string{"foo"}))},
		},
		"Invalid": {
			reason:  "invalid saved values are ignored",
			values:  []map[string]string{overwritten, {original: `{"foo":1}`}},
			managed: []metav1.ManagedFieldsEntry{patched(t, "foo")},
		},
		"TooLarge": {
			reason:     "a value that is too large is overwritten, but not saved",
			values:     []map[string]string{{"foo": tooLarge, "b": "1"}},
			configured: fooB,
			want:       plan{annotations: fooB, set: []string{"b", "foo"}, unsaved: []string{"foo"}},
			patch:      map[string]string{"b": "2", "foo": "bar", original: `{"b":"1","foo":null}`},
		},
		"DroppedTooLarge": {
			reason:  "without a saved value, the annotation is removed",
			values:  []map[string]string{overwritten, {original: `{"foo":null}`}},
			managed: []metav1.ManagedFieldsEntry{patched(t, "foo")},
			want:    plan{remove: []string{"foo"}},
			patch:   map[string]string{"foo": none, original: none},
		},
		"NotUTF8": {
			reason:     "a value that is not valid UTF-8 is not saved, because JSON cannot contain it",
			values:     []map[string]string{{"foo": "\xff"}},
			configured: fooBar,
			want:       plan{annotations: fooBar, set: []string{"foo"}, unsaved: []string{"foo"}},
			patch:      map[string]string{"foo": "bar", original: `{"foo":null}`},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{}
			for _, values := range c.values {
				maps.Copy(all, values)
			}
			for key, value := range c.patch {
				if c.want.patch == nil {
					c.want.patch = map[string]*string{}
				}
				c.want.patch[key] = &value
				if value == none {
					c.want.patch[key] = nil
				}
			}
			checkDecision(t, c.reason, newIngress(all, c.managed...), Options{Annotations: c.configured}, c.want)
		})
	}
}

// TestDecideIfNotPresent has cases with the policy IfNotPresent.
func TestDecideIfNotPresent(t *testing.T) {
	fooBar := Annotations{"foo": "bar"}
	foo := ours(fieldsOf(t, []string{"foo"}))
	cases := map[string]struct {
		reason  string
		ingress *networkingv1.Ingress
		want    plan
	}{
		"Absent": {
			reason:  "an absent annotation is set",
			ingress: newIngress(nil),
			want:    plan{annotations: fooBar, set: []string{"foo"}, apply: fooBar},
		},
		"Present":      {reason: "another value stays", ingress: newIngress(map[string]string{"foo": "x"})},
		"PresentEmpty": {reason: "an empty value stays", ingress: newIngress(map[string]string{"foo": ""})},
		"Own": {
			reason:  "the operator's own value follows the configuration",
			ingress: newIngress(map[string]string{"foo": "old"}, foo),
			want:    plan{annotations: fooBar, set: []string{"foo"}, apply: fooBar},
		},
		"Changed": {
			reason:  "a value stays if another manager has changed it after the operator",
			ingress: newIngress(map[string]string{"foo": "x"}, ours(fieldsOf(t, []string{"other"}))),
		},
		"Shared": {
			reason: "the operator releases a value that another manager also applies",
			ingress: newIngress(map[string]string{"foo": "old"}, foo,
				entry("argocd", metav1.ManagedFieldsOperationApply, fieldsOf(t, []string{"foo"}))),
			want: plan{release: []string{"foo"}},
		},
		"Overwritten": {
			reason:  "a value that the policy Always has overwritten is restored",
			ingress: newIngress(map[string]string{"foo": "bar", original: `{"foo":"x"}`}, patched(t, "foo")),
			want: plan{restore: []string{"foo"},
				patch: map[string]*string{"foo": new("x"), original: nil}},
		},
		"SavedAsNull": {
			reason:  "an annotation without a value to restore stays",
			ingress: newIngress(map[string]string{"foo": "bar", original: `{"foo":null}`}, patched(t, "foo")),
			want:    plan{annotations: fooBar},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			checkDecision(t, c.reason, c.ingress, Options{Annotations: fooBar, Policy: PolicyIfNotPresent}, c.want)
		})
	}
}

// TestDecideClass requires that Ingresses of other classes are handled like Ingresses that opted out.
func TestDecideClass(t *testing.T) {
	const deprecated = "kubernetes.io/ingress.class"
	fooBar := Annotations{"foo": "bar"}
	foo := ours(fieldsOf(t, []string{"foo"}))
	setFoo := plan{annotations: fooBar, set: []string{"foo"}, apply: fooBar}
	cases := map[string]struct {
		reason  string
		ingress *networkingv1.Ingress
		want    plan
	}{
		"First":  {"an Ingress of a selected class", withClass(newIngress(nil), "nginx"), setFoo},
		"Second": {"an Ingress of the second selected class", withClass(newIngress(nil), "haproxy"), setFoo},
		"Other":  {"an Ingress of another class needs no change", withClass(newIngress(nil), "traefik"), plan{}},
		"None":   {"an Ingress without a class is not selected", newIngress(nil), plan{}},
		"Deprecated": {"without the field, the deprecated annotation is the class",
			newIngress(map[string]string{deprecated: "nginx"}), setFoo},
		"Both": {"the field takes precedence over the annotation",
			withClass(newIngress(map[string]string{deprecated: "nginx"}), "traefik"), plan{}},
		"Left": {"an Ingress that leaves the class loses the annotation",
			withClass(newIngress(map[string]string{"foo": "bar"}, foo), "traefik"), plan{remove: []string{"foo"}}},
		"LeftSaved": {"an Ingress that leaves the class gets the saved value back",
			withClass(newIngress(map[string]string{"foo": "bar", original: `{"foo":"x"}`}, patched(t, "foo")), "traefik"),
			plan{restore: []string{"foo"}, patch: map[string]*string{"foo": new("x"), original: nil}}},
		"OwnClass": {"a class annotation that the operator itself has set does not select the Ingress",
			newIngress(map[string]string{deprecated: "nginx"}, ours(fieldsOf(t, []string{deprecated}))),
			plan{remove: []string{deprecated}}},
		"OverwrittenClass": {"if the operator has overwritten the class, the class is the saved value",
			newIngress(map[string]string{deprecated: "traefik", original: `{"kubernetes.io/ingress.class":"nginx"}`},
				patched(t, deprecated)),
			plan{annotations: fooBar, set: []string{"foo"}, restore: []string{deprecated}, patch: map[string]*string{
				"foo": new("bar"), deprecated: new("nginx"), original: new(`{"foo":null}`)}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			options := Options{Annotations: fooBar, Classes: Classes{"nginx", "haproxy"}}
			checkDecision(t, c.reason, c.ingress, options, c.want)
		})
	}
}

// TestSavedValuesAreBounded requires that the JSON of the saved values never exceeds its limit.
func TestSavedValuesAreBounded(t *testing.T) {
	saved := originals{}
	for i, c := range []struct {
		reason, value string
		want          bool
	}{
		{"it fits", strings.Repeat("a", maxOriginals/2), true},
		{"its encoding is twice as long", strings.Repeat(`"`, maxOriginals/4), false},
		{"there is space for a smaller value", strings.Repeat("a", maxOriginals/4), true},
		{"all values together are too large", strings.Repeat("a", maxOriginals/4), false},
	} {
		if got := saved.save(fmt.Sprintf("key-%d", i), &c.value); got != c.want {
			t.Errorf("value %d: %s: got saved %t", i, c.reason, got)
		}
	}
	if size := len(saved.String()); size > maxOriginals {
		t.Errorf("the saved values have %d bytes", size)
	}
	if diff := cmp.Diff(saved, parseOriginals(saved.String())); diff != "" {
		t.Errorf("saved values after encoding (-want +got):\n%s", diff)
	}
}

func TestRivals(t *testing.T) {
	ingress := &metav1.PartialObjectMetadata{ObjectMeta: newIngress(nil,
		ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`),
		patched(t, "foo"),
		entry("kubectl-annotate", metav1.ManagedFieldsOperationUpdate,
			`{"f:metadata":{"f:annotations":{".":{},"f:foo":{}}}}`),
		entry("argocd", metav1.ManagedFieldsOperationApply, `{"f:metadata":{"f:annotations":{"f:foo":{},"f:bar":{}}}}`),
		entry("nginx", metav1.ManagedFieldsOperationUpdate, `{"f:status":{"f:loadBalancer":{"f:foo":{}}}}`),
	).ObjectMeta}
	for _, c := range []struct {
		reason string
		keys   []string
		want   []string
	}{
		{"all owners except the operator", []string{"foo"}, []string{"argocd", "kubectl-annotate"}},
		{"only owners of the annotation", []string{"bar", "baz"}, []string{"argocd"}},
		{"an annotation without an owner", []string{"baz"}, []string{}},
	} {
		if diff := cmp.Diff(c.want, rivals(ingress, c.keys)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

func TestStrip(t *testing.T) {
	foo := ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`)
	argo := entry("argocd", metav1.ManagedFieldsOperationApply, `{"f:metadata":{"f:annotations":{"f:foo":{}}}}`)
	full := withClass(newIngress(map[string]string{"foo": "bar", corev1.LastAppliedConfigAnnotation: "{}",
		v1beta1.PausedAnnotation: "true"}, foo, patched(t),
		entry("kubectl", metav1.ManagedFieldsOperationUpdate, `{"f:metadata":{"f:annotations":{"f:a":{}}},"f:spec":{}}`),
		argo), "nginx")
	full.ResourceVersion, full.GenerateName, full.Finalizers = "2", "w", []string{"a/b"}
	full.Labels, full.OwnerReferences = map[string]string{"a": "b"}, []metav1.OwnerReference{{Name: "a"}}
	full.Spec.Rules = []networkingv1.IngressRule{{Host: "example.com"}}
	full.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}
	want := withClass(newIngress(map[string]string{"foo": "bar", v1beta1.PausedAnnotation: "true"},
		foo, patched(t), argo), "nginx")
	want.ResourceVersion = "2"
	for range 2 { // client-go may transform an object twice
		if _, err := trimIngress(full); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, full); diff != "" {
			t.Errorf("cached (-want +got):\n%s", diff)
		}
	}
}

// TestChanged requires that only changes of annotations and the class cause a reconcile.
func TestChanged(t *testing.T) {
	status := newIngress(nil)
	status.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}
	for _, c := range []struct {
		reason        string
		before, after client.Object
		want          bool
	}{
		{"the status changes often", newIngress(nil), status, false},
		{"an annotation", newIngress(nil), newIngress(map[string]string{"a": "b"}), true},
		{"a new class", newIngress(nil), withClass(newIngress(nil), "nginx"), true},
		{"another class", withClass(newIngress(nil), "haproxy"), withClass(newIngress(nil), "nginx"), true},
		{"the same class", withClass(newIngress(nil), "nginx"), withClass(newIngress(nil), "nginx"), false},
	} {
		if got := changed().Update(event.UpdateEvent{ObjectOld: c.before, ObjectNew: c.after}); got != c.want {
			t.Errorf("%s: got %t", c.reason, got)
		}
	}
	if !changed().Create(event.CreateEvent{Object: status}) || !changed().Delete(event.DeleteEvent{Object: status}) {
		t.Error("creations and deletions are ignored")
	}
}

func TestEnumerate(t *testing.T) {
	for want, keys := range map[string][]string{
		"annotation a":                   {"a"},
		"annotations a, b, c":            {"a", "b", "c"},
		"annotations a, b, c and 2 more": {"a", "b", "c", "d", "e"},
	} {
		if got := enumerate(keys); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
