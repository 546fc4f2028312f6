// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/api/useless/v1beta1"
)

// plan is what to do about the annotations of an Ingress.
type plan struct {
	annotations map[string]string // all annotations that the operator owns afterwards
	set, remove []string          // keys that change
}

func (p plan) empty() bool { return len(p.set) == 0 && len(p.remove) == 0 }

// decide returns what to do about an Ingress. An annotation that already has the configured value causes no write, even
// if another writer owns it.
func decide(ingress *metav1.PartialObjectMetadata, configured Annotations) plan {
	p := plan{annotations: configured}
	if ingress.Annotations[v1beta1.IngressAnnotationsAnnotation] == v1beta1.IngressAnnotationsDisabled {
		p.annotations = nil
	}
	for _, key := range slices.Sorted(maps.Keys(p.annotations)) {
		if value, ok := ingress.Annotations[key]; !ok || value != p.annotations[key] {
			p.set = append(p.set, key)
		}
	}
	for _, entry := range ingress.ManagedFields {
		if own(entry) {
			p.remove = slices.DeleteFunc(annotationsOf(entry), func(key string) bool {
				_, ok := p.annotations[key]
				return ok
			})
		}
	}
	return p
}

// rivals returns the field managers that own any of the annotations. A manager that has removed an annotation is not
// among them, because the API server does not record that.
func rivals(ingress *metav1.PartialObjectMetadata, keys []string) []string {
	managers := sets.New[string]()
	for _, entry := range ingress.ManagedFields {
		if !own(entry) && sets.New(annotationsOf(entry)...).HasAny(keys...) {
			managers.Insert(entry.Manager)
		}
	}
	return sets.List(managers)
}

// own reports whether an entry is that of the operator.
func own(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == string(fieldManager) && entry.Operation == metav1.ManagedFieldsOperationApply &&
		entry.Subresource == ""
}

// annotationsOf returns the keys of the annotations in an entry, sorted.
func annotationsOf(entry metav1.ManagedFieldsEntry) []string {
	fields := &fieldpath.Set{}
	if entry.FieldsV1 == nil || fields.FromJSON(entry.FieldsV1.GetRawReader()) != nil {
		return nil
	}
	var keys []string
	for _, name := range []string{"metadata", "annotations"} {
		fields = fields.WithPrefix(fieldpath.PathElement{FieldName: &name})
	}
	for element := range fields.Members.All() {
		if element.FieldName != nil {
			keys = append(keys, *element.FieldName)
		}
	}
	return keys
}
