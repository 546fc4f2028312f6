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

// aCRD returns a CustomResourceDefinition with the versions old and new. The storage version is new.
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
		{reason: "an older version may be stored", crd: aCRD(nil, "old", "new"), converted: true, want: &asNew},
		{reason: "the order does not matter", crd: aCRD(nil, "new", "old"), converted: true, want: &asNew},
		{reason: "only the older version is listed", crd: aCRD(nil, "old"), converted: true, want: &asNew},
		{reason: "no stored version is listed", crd: aCRD(nil), converted: true, want: &asNew},
		{
			reason: "after a rollback, the older version is the storage version", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Spec.Versions[0].Storage, crd.Spec.Versions[1].Storage = true, false
			}, "new", "old"), converted: true, want: &asOld,
		},
		{reason: "a kind that is being deleted is not migrated", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.DeletionTimestamp = new(metav1.Unix(1, 0))
		}, "old", "new"), converted: true},
		{reason: "without a conversion webhook, fields would be lost", crd: aCRD(unconverted, "old", "new"), converted: true, wantErr: "things.example.com has no conversion webhook"},
		{reason: "a conversion strategy is missing", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Conversion = nil
		}, "old", "new"), converted: true, wantErr: "has no conversion webhook"},
		{reason: "if no migration is needed, no webhook is needed", crd: aCRD(unconverted, "new"), converted: true},
		{reason: "versions with the same schema need no webhook", crd: aCRD(unconverted, "old", "new"), want: &asNew},
		{reason: "a storage version is missing", crd: aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions[1].Storage = false
		}, "old"), wantErr: "things.example.com"},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			got, err := decide(Resource{CRD: tt.crd.Name, Converted: tt.converted}, tt.crd)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || got != nil {
					t.Errorf("got %v and error %v, want an error with %q", got, err, tt.wantErr)
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
				t.Errorf("storage version (-want +got):\n%s", diff)
			}
		})
	}
}
