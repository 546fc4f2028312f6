// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// maxKnown is of how many Machines the last cached switch is known.
const maxKnown = 1 << 14

// CacheTransform keeps from the manager's cache what nobody reads of Machines and Switches, and the managed fields of
// everything else. It is no cache.ByObject, which a manager can be given only where the kind is served: one that runs other
// controllers does without it.
func CacheTransform() toolscache.TransformFunc {
	known, others := lru.New(maxKnown), cache.TransformStripManagedFields()
	return func(cached any) (any, error) {
		switch object := cached.(type) {
		case *v1beta1.Machine:
			strip(object)
		case *v1beta1.Switch:
			strip(object)
			share(known, object)
		default:
			return others(cached)
		}
		return cached, nil
	}
}

// strip empties an object of what nobody reads. Its Go type says of what kind it is.
func strip(object client.Object) {
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	object.SetManagedFields(nil)
	delete(object.GetAnnotations(), corev1.LastAppliedConfigAnnotation) // all of it once more
}

// share lets a switch have the very labels and owners of the last one of its Machine that was cached, where they are
// equal: a map and a list of their own would take as much memory as all the rest. Neither is ever changed in the cache.
func share(known *lru.Cache, sw *v1beta1.Switch) {
	owner := metav1.GetControllerOfNoCopy(sw)
	if owner == nil {
		return
	}
	if sibling, ok := known.Get(owner.UID); ok {
		sibling := sibling.(*v1beta1.Switch)
		if maps.Equal(sibling.Labels, sw.Labels) {
			sw.Labels = sibling.Labels
		}
		if reflect.DeepEqual(sibling.OwnerReferences, sw.OwnerReferences) {
			sw.OwnerReferences = sibling.OwnerReferences
		}
	}
	known.Add(owner.UID, sw)
}
