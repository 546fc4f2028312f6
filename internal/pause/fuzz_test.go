// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package pause

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/useless/v1beta1"
)

// FuzzPaused checks random values of the annotation. Predicate must drop an event if and only if IsPaused returns true.
func FuzzPaused(f *testing.F) {
	for _, value := range []string{"true", "True", "1", "t", "false", "yes", "", " true"} {
		f.Add(value, true)
	}
	f.Add("", false)
	f.Fuzz(func(t *testing.T, value string, annotated bool) {
		m := &v1beta1.Machine{}
		if annotated {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1beta1.PausedAnnotation, value)
		}
		if paused := IsPaused(m); paused == Predicate().Generic(event.GenericEvent{Object: m}) {
			t.Errorf("%q: IsPaused and Predicate both return %t", value, paused)
		}
	})
}
