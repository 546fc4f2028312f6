// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// writer returns err for each patch.
type writer struct {
	client.Writer
	err     error
	patches int
}

func (w *writer) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	w.patches++
	return w.err
}

func TestFinalizer(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "machines"}, "m")
	for _, tt := range []struct {
		reason  string
		err     error // the answer of the API server to the removal
		wantErr bool
		holds   bool // the result of Holds for the cached object after the removal
	}{
		{"a removed finalizer does not hold the object, even if the cache still shows it", nil, false, false},
		{"an object that does not exist is not held", gone, false, false},
		{"after a failed removal, the finalizer still holds the object", errors.New("no"), true, true},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			f, w := &Finalizer{Name: "example.com/finalizer"}, &writer{err: tt.err}
			m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{UID: "1", Finalizers: []string{"example.com/finalizer", "other"}}}
			if !f.Holds(m) {
				t.Error("the finalizer does not hold the object before it is removed")
			}
			if err := RemoveFinalizer(t.Context(), w, m, f); (err != nil) != tt.wantErr || w.patches != 1 {
				t.Errorf("removal: got error %v after %d patches", err, w.patches)
			}
			if got := f.Holds(m); got != tt.holds {
				t.Errorf("the finalizer holds the object: %t, want %t", got, tt.holds)
			}
			again := m.DeepCopy()
			if again.UID = types.UID("2"); !f.Holds(again) {
				t.Error("the finalizer does not hold another object of the same name")
			}
			if f.Forget(client.ObjectKeyFromObject(m)); !f.Holds(m) {
				t.Error("after Forget, the finalizer still remembers the object")
			}
		})
	}
}
