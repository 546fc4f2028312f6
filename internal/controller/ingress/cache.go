// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CacheOptions returns options that keep only the fields that the controller reads: the annotations, the class, and
// which managers own the annotations that the operator has set.
func (Options) CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&networkingv1.Ingress{}: {Transform: strip}}
}

// strip removes the fields that the controller does not read.
func strip(cached any) (any, error) {
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
// the operator. Managed fields are most of an Ingress, and few Ingresses have such an entry.
func relevant(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	owned := sets.New[string]()
	for _, entry := range entries {
		if own(entry) {
			owned.Insert(annotationsOf(entry)...)
		}
	}
	return slices.DeleteFunc(entries, func(entry metav1.ManagedFieldsEntry) bool {
		return !own(entry) && !owned.HasAny(annotationsOf(entry)...)
	})
}
