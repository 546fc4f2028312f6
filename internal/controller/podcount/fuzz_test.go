// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FuzzDecide calls decide for a ReplicaSet with random labels. The value must be a valid label value. The function must
// not change the labels. If the label already has the value, the function must not report it as wrong.
func FuzzDecide(f *testing.F) {
	f.Add("pod-count=3\nteam=useless", "pod-count", 3)
	f.Add("pod-count=03", "pod-count", 3)
	f.Add("", "example.com/pods", 0)
	f.Add("pod-count", "pod-count", 1<<31)
	f.Fuzz(func(t *testing.T, text, label string, pods int) {
		if (Options{Label: label}).Validate() != nil || pods < 0 {
			t.Skip("the operator rejects this label, or the number of Pods is negative")
		}
		rs := &metav1.PartialObjectMetadata{}
		for line := range strings.SplitSeq(text, "\n") {
			if key, value, ok := strings.Cut(line, "="); ok {
				metav1.SetMetaDataLabel(&rs.ObjectMeta, key, value)
			}
		}
		before := maps.Clone(rs.Labels)
		value, wrong := decide(rs, label, pods)
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			t.Errorf("%q is not a valid label value: %v", value, problems)
		}
		if wrong == (before[label] == value) || !maps.Equal(before, rs.Labels) {
			t.Errorf("%d Pods give %q, wrong %t; labels before: %v", pods, value, wrong, before)
		}
		metav1.SetMetaDataLabel(&rs.ObjectMeta, label, value)
		if _, wrong := decide(rs, label, pods); wrong {
			t.Errorf("%q is written again; labels: %v", value, rs.Labels)
		}
	})
}

// FuzzOwner checks the result of the function owner for a Pod with a random owner reference.
func FuzzOwner(f *testing.F) {
	f.Add("apps/v1", "ReplicaSet", "web", "1", true)
	f.Add("apps", "ReplicaSet", "web", "1", true)
	f.Add("apps/v1", "ReplicaSet", "../web", "", false)
	f.Add("appsx/v1", "replicaset", "web", "1", true)
	f.Fuzz(func(t *testing.T, apiVersion, kind, name, uid string, controls bool) {
		version, err := schema.ParseGroupVersion(apiVersion)
		if err != nil {
			t.Skip("the API server rejects this apiVersion")
		}
		pod := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name,
				UID: types.UID(uid), Controller: &controls}},
		}}
		want := replicaSet{}
		if controls && version.Group == "apps" && kind == "ReplicaSet" {
			want = replicaSet{types.NamespacedName{Namespace: "default", Name: name}, types.UID(uid)}
		}
		if got := owner(pod); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
		if keys, err := indexByController(pod); err != nil || (len(keys) > 0) != (want.UID != "") {
			t.Errorf("index keys %q", keys)
		}
	})
}
