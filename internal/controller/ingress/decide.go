// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// ModeAnnotation is on Ingresses that are to be left alone, with the value ModeDisabled. What the operator had set on them
// before goes.
const (
	ModeAnnotation = "useless.container.training/ingress-annotations"
	ModeDisabled   = "Disabled"
)

// A plan is what is to be done about the annotations of an Ingress.
type plan struct {
	annotations map[string]string // all that are to be the operator's
	set, remove []string          // the keys of those that are to change
}

func (p plan) empty() bool { return len(p.set) == 0 && len(p.remove) == 0 }

// decide returns what is to be done about an Ingress where these annotations are configured. An annotation that somebody
// else has given the value that it is to have stays theirs.
func decide(ingress *metav1.PartialObjectMetadata, configured Annotations) plan {
	p := plan{annotations: configured}
	if ingress.Annotations[ModeAnnotation] == ModeDisabled {
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

// rivals are the field managers which had the last word on any of the annotations that are to be set. One that has
// removed an annotation is not among them: the API server keeps no trace of it.
func rivals(ingress *metav1.PartialObjectMetadata, keys []string) []string {
	managers := sets.New[string]()
	for _, entry := range ingress.ManagedFields {
		if !own(entry) && sets.New(annotationsOf(entry)...).HasAny(keys...) {
			managers.Insert(entry.Manager)
		}
	}
	return sets.List(managers)
}

// own reports whether an entry has what the operator has applied.
func own(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == string(fieldManager) && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
}

// annotationsOf returns the keys of the annotations that are an entry's, sorted.
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
