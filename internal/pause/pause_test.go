// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package pause

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/useless/v1beta1"
)

func TestPaused(t *testing.T) {
	for _, tt := range []struct {
		reason      string
		annotations map[string]string
		want        bool
	}{
		{"without the annotation, an object is not paused", nil, false},
		{"true pauses", map[string]string{v1beta1.PausedAnnotation: "true"}, true},
		{"1 pauses", map[string]string{v1beta1.PausedAnnotation: "1"}, true},
		{"T pauses", map[string]string{v1beta1.PausedAnnotation: "T"}, true},
		{"false does not pause", map[string]string{v1beta1.PausedAnnotation: "false"}, false},
		{"an empty value does not pause", map[string]string{v1beta1.PausedAnnotation: ""}, false},
		{"an invalid boolean does not pause", map[string]string{v1beta1.PausedAnnotation: "yes"}, false},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			object := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotations}}
			if got := IsPaused(object); got != tt.want {
				t.Errorf("got paused %t", got)
			}
			if passes := Predicate().Generic(event.GenericEvent{Object: object}); passes == tt.want {
				t.Errorf("the predicate accepts the event: %t", passes)
			}
			if !Predicate().Delete(event.DeleteEvent{Object: object}) {
				t.Error("the predicate drops the event of a deleted object")
			}
			object.DeletionTimestamp = new(metav1.Unix(1, 0))
			if !Predicate().Generic(event.GenericEvent{Object: object}) {
				t.Error("the predicate drops the event of an object that is being deleted")
			}
		})
	}
}
