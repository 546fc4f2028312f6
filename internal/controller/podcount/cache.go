// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// CacheOptions keep of ReplicaSets and Pods what the controller reads: of a Pod of a few kilobytes that is its name, its
// controller and whether it is being deleted.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&appsv1.ReplicaSet{}: {Transform: strip(func(meta *metav1.ObjectMeta) {
			meta.OwnerReferences = nil
			maps.DeleteFunc(meta.Annotations, func(key, _ string) bool { return key != v1beta1.PausedAnnotation })
		})},
		&corev1.Pod{}: {Transform: strip(func(meta *metav1.ObjectMeta) {
			meta.Labels, meta.Annotations = nil, nil
		})},
	}
}

// strip is a transformation that empties the metadata of objects which are cached as metadata only.
func strip(more func(*metav1.ObjectMeta)) func(any) (any, error) {
	managedFields := cache.TransformStripManagedFields()
	return func(cached any) (any, error) {
		if object, ok := cached.(*metav1.PartialObjectMetadata); ok {
			object.GenerateName, object.Finalizers = "", nil
			more(&object.ObjectMeta)
		}
		return managedFields(cached)
	}
}
