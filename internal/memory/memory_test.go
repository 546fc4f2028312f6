// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func pod(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid}}
}

func TestMemory(t *testing.T) {
	var m Memory[int]
	m.Forget(client.ObjectKeyFromObject(pod("a", "1"))) // an empty memory has nothing to forget
	m.Keep(pod("a", "1"), 1)
	m.Keep(pod("b", "2"), 2)
	m.Keep(pod("b", "2"), 3)
	m.Keep(pod("c", "3"), 4)
	m.Forget(client.ObjectKeyFromObject(pod("c", "3")))
	m.Keep(pod("e", "6"), 5)
	m.Keep(pod("e", "6"), 0)
	m.Update(pod("f", "7"), func(value *int) { *value += 6 })
	m.Update(pod("f", "7"), func(value *int) { *value += 7 })
	for _, tt := range []struct {
		reason string
		object client.Object
		want   int
	}{
		{"a value is remembered", pod("a", "1"), 1},
		{"a second value replaces the first", pod("b", "2"), 3},
		{"a new object of the same name has no value", pod("a", "4"), 0},
		{"a forgotten value is gone", pod("c", "3"), 0},
		{"an unknown object has no value", pod("d", "5"), 0},
		{"the zero value replaces another value", pod("e", "6"), 0},
		{"an update changes the previous value", pod("f", "7"), 13},
	} {
		if got := m.Of(tt.object); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.reason, got, tt.want)
		}
	}
	if _, found := m.values.Load(client.ObjectKeyFromObject(pod("e", "6"))); found {
		t.Error("the zero value needs memory")
	}
}
