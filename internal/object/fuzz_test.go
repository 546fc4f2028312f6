// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/useless/v1beta1"
)

// FuzzNewer compares any three resourceVersions: no two are newer than each other, and what is newer than the newer one is.
func FuzzNewer(f *testing.F) {
	f.Add("10", "9", "9223372036854775808")
	f.Add("", "0", "01")
	f.Add("a", "-1", "1")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if Newer(a, a) || Newer(a, b) && Newer(b, a) {
			t.Errorf("%q and %q are newer than each other", a, b)
		}
		if Newer(a, b) && Newer(b, c) && !Newer(a, c) {
			t.Errorf("%q is newer than %q, that is newer than %q, and the first is not", a, b, c)
		}
	})
}

// FuzzPaused writes anything into the annotation. The controllers and what wakes them read the same.
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
		if paused := Paused(m); paused == NotPaused().Generic(event.GenericEvent{Object: m}) {
			t.Errorf("%q: paused is %v, and so is what wakes", value, paused)
		}
	})
}

// FuzzBrief shortens any text, and none that is short enough.
func FuzzBrief(f *testing.F) {
	f.Add("", 0)
	f.Add("exceeded quota", 1)
	f.Add("ä€😀", 2000)
	f.Fuzz(func(t *testing.T, word string, times int) {
		text := strings.Repeat(word, max(times, 0)%2000)
		cut := Brief(text)
		if len(cut) > maxBrief || utf8.ValidString(text) && !utf8.ValidString(cut) {
			t.Errorf("%d bytes become %d: %q", len(text), len(cut), cut)
		}
		if len(text) <= maxBrief && cut != text || len(text) > maxBrief && !strings.HasPrefix(text, strings.TrimSuffix(cut, "…")) && utf8.ValidString(text) {
			t.Errorf("%q became %q", text, cut)
		}
	})
}
