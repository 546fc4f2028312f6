// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// maxSiblings bounds the Machines for which newTransform remembers a cached Switch (LRU).
const maxSiblings = 1 << 14

// newTransform returns a function that trims Machines and Switches before they are cached.
func newTransform() toolscache.TransformFunc {
	siblings := lru.New(maxSiblings)
	return func(cached any) (any, error) {
		switch object := cached.(type) {
		case *v1beta1.Machine:
			trim(object)
		case *v1beta1.Switch:
			trim(object)
			share(siblings, object)
		}
		return cached, nil
	}
}

// trim removes the fields that no controller reads. One of them is the kind, because the Go type implies it.
func trim(object client.Object) {
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	object.SetManagedFields(nil)
	delete(object.GetAnnotations(), corev1.LastAppliedConfigAnnotation) // a copy of the whole object
}

// share lets a Switch use the labels and owners of another Switch of the same Machine if they are equal. Without
// sharing, these maps and lists would need as much memory as all other fields. Cached objects are never changed, so
// sharing is safe.
func share(siblings *lru.Cache, sw *v1beta1.Switch) {
	owner := metav1.GetControllerOfNoCopy(sw)
	if owner == nil {
		return
	}
	if known, ok := siblings.Get(owner.UID); ok {
		sibling := known.(*v1beta1.Switch)
		if maps.Equal(sibling.Labels, sw.Labels) {
			sw.Labels = sibling.Labels
		}
		if reflect.DeepEqual(sibling.OwnerReferences, sw.OwnerReferences) {
			sw.OwnerReferences = sibling.OwnerReferences
		}
	}
	siblings.Add(owner.UID, sw)
}

// Names of the indexes in the informers' stores.
const (
	switchesByOwner   = "useless/owner"
	orphansByLabel    = "useless/orphan"
	machinesSelecting = "useless/selecting"
)

var (
	switchIndexers  = toolscache.Indexers{switchesByOwner: indexByOwner, orphansByLabel: indexOrphans}
	machineIndexers = toolscache.Indexers{machinesSelecting: indexSelecting}
)

// byIndex returns the objects with this key in an index. They belong to the cache and must not be changed.
func byIndex[T client.Object](store toolscache.Indexer, index, key string) []T {
	found, err := store.ByIndex(index, key)
	if err != nil {
		panic(err) // the index does not exist, which is a bug in Setup
	}
	objects := make([]T, 0, len(found))
	for _, object := range found {
		objects = append(objects, object.(T))
	}
	return objects
}

// indexByOwner indexes Switches by their namespace and the UID of their controller. The namespace is part of the key,
// because a Switch and its owner must be in the same namespace.
func indexByOwner(object any) ([]string, error) {
	sw := object.(*v1beta1.Switch)
	if owner := metav1.GetControllerOfNoCopy(sw); owner != nil {
		return []string{ownerKey(sw.Namespace, owner.UID)}, nil
	}
	return nil, nil
}

func ownerKey(namespace string, uid types.UID) string { return namespace + "/" + string(uid) }

// indexOrphans indexes the Switches without a controller by their namespace and each of their labels. The controller
// reads only the orphans with the index key of a Machine's selector. So it needs no time for other orphans.
func indexOrphans(object any) ([]string, error) {
	sw := object.(*v1beta1.Switch)
	if metav1.GetControllerOfNoCopy(sw) != nil {
		return nil, nil
	}
	return labelKeys(sw), nil
}

// labelKeys returns the index keys of an object's labels, and the index key of noLabel.
func labelKeys(object client.Object) []string {
	keys := make([]string, 0, 1+len(object.GetLabels()))
	keys = append(keys, labelKey(object.GetNamespace(), noLabel, ""))
	for label, value := range object.GetLabels() {
		keys = append(keys, labelKey(object.GetNamespace(), label, value))
	}
	return keys
}

// indexSelecting indexes the Machines with a selector in their spec. The key is selectorKey. So the controller compares
// each Switch with only a few of these Machines.
func indexSelecting(object any) ([]string, error) {
	m := object.(*v1beta1.Machine)
	if m.Spec.Switches.Selector == nil {
		return nil, nil
	}
	return []string{selectorKey(m)}, nil
}

// noLabel replaces the label in the index key of a selector without matchLabels. labelKeys adds such a key for each
// object.
const noLabel = ""

// selectorKey returns the index key of one label that the selector of the Machine requires.
func selectorKey(m *v1beta1.Machine) string {
	selector := m.Spec.Switches.Selector
	switch {
	case selector == nil:
		return labelKey(m.Namespace, v1beta1.MachineLabel, m.Name)
	case len(selector.MatchLabels) == 0:
		return labelKey(m.Namespace, noLabel, "")
	}
	label := slices.Min(slices.Collect(maps.Keys(selector.MatchLabels)))
	return labelKey(m.Namespace, label, string(selector.MatchLabels[label]))
}

func labelKey(namespace, label, value string) string { return namespace + "/" + label + "=" + value }
