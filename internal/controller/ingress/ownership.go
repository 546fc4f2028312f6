// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/api/useless/v1beta1"
)

// state describes the operator's earlier writes to an Ingress, as its annotations and managed fields record them.
type state struct {
	values map[string]string // the annotations

	// own are the annotations that the operator has set, and that no other manager has changed since.
	own sets.Set[string]
	// shared are the annotations in own that another manager has set to the same value.
	shared sets.Set[string]
	// saved are the values before the operator's merge patches.
	saved originals
}

// stateOf reads the state of an Ingress. The operator owns all annotations in its managed-fields entry for server-side
// apply. Its entry for merge patches also contains restored values. In this entry, the operator owns only the
// annotations with a saved value. If another manager has changed the saved values, stateOf ignores them.
func stateOf(ingress *networkingv1.Ingress) state {
	applied, updated, others := sets.New[string](), sets.New[string](), sets.New[string]()
	for _, entry := range ingress.ManagedFields {
		keys := annotationsOf(entry)
		switch {
		case !isOwn(entry):
			others.Insert(keys...)
		case entry.Operation == metav1.ManagedFieldsOperationApply:
			applied.Insert(keys...)
		default:
			updated.Insert(keys...)
		}
	}
	s := state{values: ingress.Annotations}
	if updated.Has(v1beta1.OriginalAnnotationsAnnotation) {
		s.saved = parseOriginals(ingress.Annotations[v1beta1.OriginalAnnotationsAnnotation])
	}
	s.own = applied.Union(updated.Intersection(sets.KeySet(s.saved))).Intersection(sets.KeySet(ingress.Annotations))
	s.own.Delete(v1beta1.OriginalAnnotationsAnnotation)
	s.shared = s.own.Intersection(others)
	return s
}

// theirs returns the value of an annotation that other managers have set, or nil if there is none. If the operator has
// overwritten the value, theirs returns the saved value.
func (s state) theirs(key string) *string {
	if s.own.Has(key) && !s.shared.Has(key) {
		return s.saved[key]
	}
	if value, ok := s.values[key]; ok {
		return &value
	}
	return nil
}

// classOf returns the name of an Ingress's class, or "" if it has none. If the operator has set the deprecated class
// annotation, classOf uses the value before that.
func (s state) classOf(ingress *networkingv1.Ingress) string {
	return ptr.Deref(cmp.Or(ingress.Spec.IngressClassName, s.theirs(networkingv1beta1.AnnotationIngressClass)), "")
}

// maxOriginals limits the total size of the saved values in bytes. All annotations of an object have at most 256 KiB.
const maxOriginals = 16 << 10

// originals are the values of annotations before the operator set them in a merge patch. Nil means that there is
// nothing to restore: the annotation was absent, or its value could not be saved.
type originals map[string]*string

// parseOriginals parses the text of String. It returns nil for invalid text.
func parseOriginals(text string) originals {
	var saved originals
	if json.Unmarshal([]byte(text), &saved) != nil {
		return nil
	}
	return saved
}

// String returns a JSON object, or "" if it would be empty.
func (o originals) String() string {
	if len(o) == 0 {
		return ""
	}
	text := &bytes.Buffer{}
	encoder := json.NewEncoder(text)
	encoder.SetEscapeHTML(false) // an escaped character needs six bytes
	if err := encoder.Encode(map[string]*string(o)); err != nil {
		panic(err) // cannot happen: a map of strings is always valid
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// save records the value of an annotation; nil means that it is absent. If the value is not valid UTF-8, or all saved
// values together would be larger than maxOriginals, save records nil and returns false.
func (o originals) save(key string, value *string) bool {
	o[key] = value
	if value == nil || utf8.ValidString(*value) && len(o.String()) <= maxOriginals {
		return true
	}
	o[key] = nil
	return false
}

// trimIngress removes the fields that the controller does not read.
func trimIngress(cached any) (any, error) {
	ingress, ok := cached.(*networkingv1.Ingress)
	if !ok {
		return cache.TransformStripManagedFields()(cached)
	}
	ingress.GenerateName, ingress.Labels, ingress.OwnerReferences, ingress.Finalizers = "", nil, nil, nil
	delete(ingress.Annotations, corev1.LastAppliedConfigAnnotation)
	ingress.ManagedFields = relevant(ingress.ManagedFields)
	ingress.Spec = networkingv1.IngressSpec{IngressClassName: ingress.Spec.IngressClassName}
	ingress.Status = networkingv1.IngressStatus{}
	return ingress, nil
}

// relevant returns the operator's entries, and the entries of managers that have set an annotation to the same value as
// the operator. It drops the other entries, because managed fields are the largest part of an Ingress.
func relevant(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	owned := sets.New[string]()
	for _, entry := range entries {
		if isOwn(entry) {
			owned.Insert(annotationsOf(entry)...)
		}
	}
	return slices.DeleteFunc(entries, func(entry metav1.ManagedFieldsEntry) bool {
		return !isOwn(entry) && !owned.HasAny(annotationsOf(entry)...)
	})
}

// rivals returns the other field managers that own any of the annotations. It cannot return a manager that has removed
// an annotation, because the API server does not record removals.
func rivals(ingress *metav1.PartialObjectMetadata, keys []string) []string {
	managers := sets.New[string]()
	for _, entry := range ingress.ManagedFields {
		if !isOwn(entry) && slices.ContainsFunc(annotationsOf(entry), sets.New(keys...).Has) {
			managers.Insert(entry.Manager)
		}
	}
	return sets.List(managers)
}

// isOwn reports whether an entry belongs to the operator.
func isOwn(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == string(fieldManager) && entry.Subresource == ""
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
