// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

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
		{"no annotation asks for nothing", nil, false},
		{"true is what the documentation says", map[string]string{v1beta1.PausedAnnotation: "true"}, true},
		{"1 is true", map[string]string{v1beta1.PausedAnnotation: "1"}, true},
		{"T is true", map[string]string{v1beta1.PausedAnnotation: "T"}, true},
		{"false is not", map[string]string{v1beta1.PausedAnnotation: "false"}, false},
		{"nothing is not", map[string]string{v1beta1.PausedAnnotation: ""}, false},
		{"what is no boolean is not", map[string]string{v1beta1.PausedAnnotation: "yes"}, false},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			object := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotations}}
			if got := Paused(object); got != tt.want {
				t.Errorf("paused: %v", got)
			}
			if passes := NotPaused().Generic(event.GenericEvent{Object: object}); passes == tt.want {
				t.Errorf("the predicate lets it pass: %v", passes)
			}
			if !NotPaused().Delete(event.DeleteEvent{Object: object}) {
				t.Error("the predicate keeps one back that is gone")
			}
			object.DeletionTimestamp = new(metav1.Unix(1, 0))
			if !NotPaused().Generic(event.GenericEvent{Object: object}) {
				t.Error("the predicate keeps one back that is being deleted")
			}
		})
	}
}
