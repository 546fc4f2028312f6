// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"container.training/useless/api/useless/v1beta1"
)

// newIngress returns an Ingress with these annotations.
func newIngress(annotations map[string]string, managed ...metav1.ManagedFieldsEntry) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web", UID: "1", Annotations: annotations, ManagedFields: managed,
	}}
}

// entry returns an entry of metadata.managedFields.
func entry(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: operation, APIVersion: "networking.k8s.io/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields),
	}
}

func ours(fields string) metav1.ManagedFieldsEntry {
	return entry(string(fieldManager), metav1.ManagedFieldsOperationApply, fields)
}

func TestDecide(t *testing.T) {
	const owned = `{"f:metadata":{"f:annotations":{"f:example.com/old":{},"f:foo":{}}}}`
	cases := map[string]struct {
		reason     string
		ingress    *metav1.PartialObjectMetadata
		configured Annotations
		want       plan
	}{
		"New": {
			reason:     "configured annotations are set if they are absent",
			ingress:    newIngress(nil),
			configured: Annotations{"foo": "bar", "a": "b"},
			want:       plan{annotations: Annotations{"foo": "bar", "a": "b"}, set: []string{"a", "foo"}},
		},
		"Done": {
			reason:     "existing annotations are not set again",
			ingress:    newIngress(map[string]string{"foo": "bar", "example.com/old": "1"}, ours(owned)),
			configured: Annotations{"foo": "bar", "example.com/old": "1"},
			want:       plan{annotations: Annotations{"foo": "bar", "example.com/old": "1"}},
		},
		"OthersValue": {
			reason: "an annotation that another manager has set to the same value is not set",
			ingress: newIngress(map[string]string{"foo": "bar"},
				entry("kubectl", metav1.ManagedFieldsOperationUpdate,
					`{"f:metadata":{"f:annotations":{".":{},"f:foo":{}}}}`)),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}},
		},
		"Changed": {
			reason:     "another value is overwritten",
			ingress:    newIngress(map[string]string{"foo": "baz"}),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}, set: []string{"foo"}},
		},
		"EmptyValue": {
			reason:     "an empty value is not the same as none",
			ingress:    newIngress(nil),
			configured: Annotations{"foo": ""},
			want:       plan{annotations: Annotations{"foo": ""}, set: []string{"foo"}},
		},
		"Dropped": {
			reason:     "an owned annotation that is no longer configured is removed; annotations of others stay",
			ingress:    newIngress(map[string]string{"foo": "bar", "example.com/old": "1", "other": "2"}, ours(owned)),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}, remove: []string{"example.com/old"}},
		},
		"NoneConfigured": {
			reason:  "without a configuration, all owned annotations are removed",
			ingress: newIngress(map[string]string{"foo": "bar", "example.com/old": "1"}, ours(owned)),
			want:    plan{remove: []string{"example.com/old", "foo"}},
		},
		"NothingOwned": {
			reason:  "an Ingress without owned annotations needs no change",
			ingress: newIngress(map[string]string{"foo": "bar"}),
		},
		"OptedOut": {
			reason: "an opt-out removes the owned annotations",
			ingress: newIngress(map[string]string{"foo": "bar", "example.com/old": "1",
				v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled}, ours(owned)),
			configured: Annotations{"foo": "bar", "example.com/old": "1"},
			want:       plan{remove: []string{"example.com/old", "foo"}},
		},
		"OptedOutEarly": {
			reason: "an Ingress that opted out at its creation needs no change",
			ingress: newIngress(map[string]string{
				v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled,
			}),
			configured: Annotations{"foo": "bar"},
		},
		"OtherMode": {
			reason:     "only the value Disabled opts out",
			ingress:    newIngress(map[string]string{v1beta1.IngressAnnotationsAnnotation: "Enabled"}),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}, set: []string{"foo"}},
		},
		"UpdateEntry": {
			reason: "an Update entry with the operator's name is not owned",
			ingress: newIngress(map[string]string{"foo": "bar"},
				entry(string(fieldManager), metav1.ManagedFieldsOperationUpdate, owned)),
		},
		"Unreadable": {
			reason:  "invalid fieldsV1 own nothing",
			ingress: newIngress(map[string]string{"foo": "bar"}, ours("{")),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := decide(c.ingress, c.configured)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(plan{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestRivals(t *testing.T) {
	ingress := newIngress(nil,
		ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`),
		entry("kubectl-annotate", metav1.ManagedFieldsOperationUpdate,
			`{"f:metadata":{"f:annotations":{".":{},"f:foo":{}}}}`),
		entry("argocd", metav1.ManagedFieldsOperationApply, `{"f:metadata":{"f:annotations":{"f:foo":{},"f:bar":{}}}}`),
		entry("nginx", metav1.ManagedFieldsOperationUpdate, `{"f:status":{"f:loadBalancer":{"f:foo":{}}}}`),
	)
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
	full := newIngress(map[string]string{"foo": "bar", corev1.LastAppliedConfigAnnotation: "{}",
		v1beta1.PausedAnnotation: "true"},
		ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`),
		entry("kubectl", metav1.ManagedFieldsOperationUpdate, `{"f:spec":{}}`))
	full.ResourceVersion, full.GenerateName, full.Finalizers = "2", "w", []string{"a/b"}
	full.Labels, full.OwnerReferences = map[string]string{"a": "b"}, []metav1.OwnerReference{{Name: "a"}}
	want := newIngress(map[string]string{"foo": "bar", v1beta1.PausedAnnotation: "true"},
		ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`))
	want.ResourceVersion = "2"
	for range 2 { // client-go may transform an object twice
		if _, err := strip(full); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, full); diff != "" {
			t.Errorf("cached (-want +got):\n%s", diff)
		}
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

func TestHistoriesAreByUID(t *testing.T) {
	known := newHistories()
	known.keep(newIngress(nil), history{uid: "1", refusal: "no"})
	if got := known.of(newIngress(nil)); got.refusal != "no" {
		t.Errorf("got %+v, want the stored history", got)
	}
	again := newIngress(nil)
	again.UID = "2"
	if got := known.of(again); got.uid != "2" || got.refusal != "" {
		t.Errorf("another Ingress with the same name has the history %+v", got)
	}
	known.forget(types.NamespacedName{Namespace: "default", Name: "web"})
	if len(known.byKey) > 0 {
		t.Errorf("histories after forget: %v", known.byKey)
	}
}
