// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CacheOptions keep of Ingresses what the controller reads: of managedFields only what is the operator's.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&networkingv1.Ingress{}: {Transform: strip}}
}

// strip empties the metadata of an Ingress, which is cached as metadata only.
func strip(cached any) (any, error) {
	ingress, ok := cached.(*metav1.PartialObjectMetadata)
	if !ok {
		return cache.TransformStripManagedFields()(cached)
	}
	ingress.GenerateName, ingress.Labels, ingress.OwnerReferences, ingress.Finalizers = "", nil, nil, nil
	delete(ingress.Annotations, corev1.LastAppliedConfigAnnotation)
	ingress.ManagedFields = slices.DeleteFunc(ingress.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool { return !own(entry) })
	return ingress, nil
}
