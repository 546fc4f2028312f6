// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package memory keeps a controller's own data about objects. The API server does not store this data, and a restart of
// the operator clears it.
package memory

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Memory keeps one value for each object. The zero Memory is empty. Its methods can be called concurrently.
type Memory[T any] struct{ values sync.Map } // types.NamespacedName to remembered[T]

type remembered[T any] struct {
	uid   types.UID // of the object: a new object of the same name has another UID
	value T
}

// Of returns the value of an object, or the zero value if there is none.
func (m *Memory[T]) Of(object client.Object) (value T) {
	stored, _ := m.values.Load(client.ObjectKeyFromObject(object))
	if known, ok := stored.(remembered[T]); ok && known.uid == object.GetUID() {
		return known.value
	}
	return value
}

// Keep replaces the value of an object. If value is the zero value, Keep removes the entry of the object.
func (m *Memory[T]) Keep(object client.Object, value T) {
	if reflect.ValueOf(&value).Elem().IsZero() {
		m.Forget(client.ObjectKeyFromObject(object))
		return
	}
	m.values.Store(client.ObjectKeyFromObject(object), remembered[T]{object.GetUID(), value})
}

// Update changes a copy of the value of an object, and keeps the copy. Do not call it concurrently for one object.
func (m *Memory[T]) Update(object client.Object, change func(*T)) {
	value := m.Of(object)
	change(&value)
	m.Keep(object, value)
}

// Forget drops the value of an object. A controller calls it when the object does not exist any more.
func (m *Memory[T]) Forget(key types.NamespacedName) { m.values.Delete(key) }
