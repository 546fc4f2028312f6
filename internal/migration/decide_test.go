// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// aCRD is one with the versions old and new, stored as new, of which the API server remembers these to be stored.
func aCRD(change func(*apiextensionsv1.CustomResourceDefinition), stored ...string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things.example.com", ResourceVersion: "7"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:      "example.com",
			Names:      apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Kind: "Thing", ListKind: "ThingList"},
			Versions:   []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "old", Served: true}, {Name: "new", Served: true, Storage: true}},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: stored},
	}
	if change != nil {
		change(crd)
	}
	return crd
}

func TestDecide(t *testing.T) {
	unconverted := func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Conversion.Strategy = apiextensionsv1.NoneConverter
	}
	asNew := schema.GroupVersionKind{Group: "example.com", Version: "new", Kind: "Thing"}
	asOld := schema.GroupVersionKind{Group: "example.com", Version: "old", Kind: "Thing"}

	for _, tt := range []struct {
		reason    string
		crd       *apiextensionsv1.CustomResourceDefinition
		converted bool
		want      *schema.GroupVersionKind
		wantErr   string
	}{
		{reason: "only the storage version is stored", crd: aCRD(nil, "new"), converted: true},
		{reason: "an older version may be stored, too", crd: aCRD(nil, "old", "new"), converted: true, want: &asNew},
		{reason: "the order does not matter", crd: aCRD(nil, "new", "old"), converted: true, want: &asNew},
		{reason: "only an older version is known to be stored", crd: aCRD(nil, "old"), converted: true, want: &asNew},
		{reason: "nothing is known to be stored", crd: aCRD(nil), converted: true, want: &asNew},
		{
			reason: "a roll-back goes the other way", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Spec.Versions[0].Storage, crd.Spec.Versions[1].Storage = true, false
			}, "new", "old"), converted: true, want: &asOld,
		},
		{reason: "objects that are being deleted with their kind go by themselves", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.DeletionTimestamp = new(metav1.Unix(1, 0))
		}, "old", "new"), converted: true},
		{reason: "without a converter fields would be lost", crd: aCRD(unconverted, "old", "new"), converted: true, wantErr: "things.example.com has no conversion webhook"},
		{reason: "no strategy is no converter", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Conversion = nil
		}, "old", "new"), converted: true, wantErr: "has no conversion webhook"},
		{reason: "where there is nothing to migrate no converter is needed", crd: aCRD(unconverted, "new"), converted: true},
		{reason: "versions that read the same need no converter", crd: aCRD(unconverted, "old", "new"), want: &asNew},
		{reason: "without a storage version nothing can be done", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions[1].Storage = false
		}, "old"), wantErr: "things.example.com"},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			got, err := decide(resource{crd: tt.crd.Name, converted: tt.converted}, tt.crd)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || got != nil {
					t.Errorf("got %v and error %v, not an error with %q", got, err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var kind *schema.GroupVersionKind
			if got != nil {
				kind = &got.to
			}
			if diff := cmp.Diff(tt.want, kind); diff != "" {
				t.Errorf("to rewrite as (-want +got):\n%s", diff)
			}
		})
	}
}
