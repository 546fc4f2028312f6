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

// an is an Ingress with these annotations.
func an(annotations map[string]string, managed ...metav1.ManagedFieldsEntry) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web", UID: "1", Annotations: annotations, ManagedFields: managed,
	}}
}

// entry is what a manager owns, as the API server writes it.
func entry(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: operation, APIVersion: "networking.k8s.io/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
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
			reason:     "what is configured is set where there is nothing yet",
			ingress:    an(nil),
			configured: Annotations{"foo": "bar", "a": "b"},
			want:       plan{annotations: Annotations{"foo": "bar", "a": "b"}, set: []string{"a", "foo"}},
		},
		"Done": {
			reason:     "what is there is not set again",
			ingress:    an(map[string]string{"foo": "bar", "example.com/old": "1"}, ours(owned)),
			configured: Annotations{"foo": "bar", "example.com/old": "1"},
			want:       plan{annotations: Annotations{"foo": "bar", "example.com/old": "1"}},
		},
		"OthersValue": {
			reason:     "what somebody else has set to the same value stays theirs",
			ingress:    an(map[string]string{"foo": "bar"}, entry("kubectl", metav1.ManagedFieldsOperationUpdate, `{"f:metadata":{"f:annotations":{".":{},"f:foo":{}}}}`)),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}},
		},
		"Changed": {
			reason:     "another value is overwritten",
			ingress:    an(map[string]string{"foo": "baz"}),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}, set: []string{"foo"}},
		},
		"EmptyValue": {
			reason:     "an empty value is not the same as none",
			ingress:    an(nil),
			configured: Annotations{"foo": ""},
			want:       plan{annotations: Annotations{"foo": ""}, set: []string{"foo"}},
		},
		"Dropped": {
			reason:     "what left the configuration is removed, and what others own stays",
			ingress:    an(map[string]string{"foo": "bar", "example.com/old": "1", "other": "2"}, ours(owned)),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}, remove: []string{"example.com/old"}},
		},
		"NoneConfigured": {
			reason:  "without a configuration everything is removed that is ours",
			ingress: an(map[string]string{"foo": "bar", "example.com/old": "1"}, ours(owned)),
			want:    plan{remove: []string{"example.com/old", "foo"}},
		},
		"NothingOwned": {
			reason:  "where nothing is ours there is nothing to remove",
			ingress: an(map[string]string{"foo": "bar"}),
		},
		"OptedOut": {
			reason:     "who opts out has ours removed",
			ingress:    an(map[string]string{"foo": "bar", "example.com/old": "1", v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled}, ours(owned)),
			configured: Annotations{"foo": "bar", "example.com/old": "1"},
			want:       plan{remove: []string{"example.com/old", "foo"}},
		},
		"OptedOutEarly": {
			reason:     "who has opted out from the start is left alone",
			ingress:    an(map[string]string{v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled}),
			configured: Annotations{"foo": "bar"},
		},
		"OtherMode": {
			reason:     "only one value opts out",
			ingress:    an(map[string]string{v1beta1.IngressAnnotationsAnnotation: "Enabled"}),
			configured: Annotations{"foo": "bar"},
			want:       plan{annotations: Annotations{"foo": "bar"}, set: []string{"foo"}},
		},
		"UpdateEntry": {
			reason:  "what was not applied is not ours, whatever it is called",
			ingress: an(map[string]string{"foo": "bar"}, entry(string(fieldManager), metav1.ManagedFieldsOperationUpdate, owned)),
		},
		"Unreadable": {
			reason:  "fields that cannot be read are nobody's",
			ingress: an(map[string]string{"foo": "bar"}, ours("{")),
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
	ingress := an(nil,
		ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`),
		entry("kubectl-annotate", metav1.ManagedFieldsOperationUpdate, `{"f:metadata":{"f:annotations":{".":{},"f:foo":{}}}}`),
		entry("argocd", metav1.ManagedFieldsOperationApply, `{"f:metadata":{"f:annotations":{"f:foo":{},"f:bar":{}}}}`),
		entry("nginx", metav1.ManagedFieldsOperationUpdate, `{"f:status":{"f:loadBalancer":{"f:foo":{}}}}`),
	)
	for _, c := range []struct {
		reason string
		keys   []string
		want   []string
	}{
		{"all who own it but the operator", []string{"foo"}, []string{"argocd", "kubectl-annotate"}},
		{"only those who own it", []string{"bar", "baz"}, []string{"argocd"}},
		{"who removes an annotation owns it no more", []string{"baz"}, []string{}},
	} {
		if diff := cmp.Diff(c.want, rivals(ingress, c.keys)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

func TestStrip(t *testing.T) {
	full := an(map[string]string{"foo": "bar", corev1.LastAppliedConfigAnnotation: "{}", v1beta1.PausedAnnotation: "true"},
		ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`),
		entry("kubectl", metav1.ManagedFieldsOperationUpdate, `{"f:spec":{}}`))
	full.ResourceVersion, full.GenerateName, full.Finalizers = "2", "w", []string{"a/b"}
	full.Labels, full.OwnerReferences = map[string]string{"a": "b"}, []metav1.OwnerReference{{Name: "a"}}
	want := an(map[string]string{"foo": "bar", v1beta1.PausedAnnotation: "true"}, ours(`{"f:metadata":{"f:annotations":{"f:foo":{}}}}`))
	want.ResourceVersion = "2"
	for range 2 { // a transformation may be given what it has given
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
	known.keep(an(nil), history{uid: "1", refusal: "no"})
	if got := known.of(an(nil)); got.refusal != "no" {
		t.Errorf("got %+v, want what was kept", got)
	}
	again := an(nil)
	again.UID = "2"
	if got := known.of(again); got.uid != "2" || got.refusal != "" {
		t.Errorf("an Ingress of the same name has the history %+v", got)
	}
	known.forget(types.NamespacedName{Namespace: "default", Name: "web"})
	if len(known.byKey) > 0 {
		t.Errorf("%v is not forgotten", known.byKey)
	}
}
