// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestRecentVersions(t *testing.T) {
	r := newRecent()
	version := func(version string) *appsv1.Deployment {
		return newDeployment(1, func(d *appsv1.Deployment) { d.ResourceVersion = version })
	}
	check := func(reason string, d *appsv1.Deployment, want bool) {
		t.Helper()
		if got := r.outdated(d); got != want {
			t.Errorf("%s: outdated is %v", reason, got)
		}
	}
	check("what nobody has written is as good as any", version("9"), false)
	r.wrote(version("10"))
	check("what is older than the last write is outdated", version("9"), true)
	check("the last write itself is not", version("10"), false)
	check("a later one is not", version("11"), false)
	check("one that cannot be compared is believed", version("later"), false)
	check("another one is not", newDeployment(1, inNamespace("other"), func(d *appsv1.Deployment) { d.ResourceVersion = "9" }), false)
	r.forget(client.ObjectKeyFromObject(version("")))
	check("what is forgotten is believed", version("9"), false)
}

func TestRecentWarnings(t *testing.T) {
	r, d := newRecent(), newDeployment(1)
	for _, step := range []struct {
		reason, warning string
		want            bool
	}{
		{"no warning is no news", "", false},
		{"the first is", "bad", true},
		{"the same again is not", "bad", false},
		{"another one is", "worse", true},
		{"what is mended is not", "", false},
		{"and broken again, it is", "worse", true},
	} {
		if got := r.warns(d, step.warning); got != step.want {
			t.Errorf("%s: got %v", step.reason, got)
		}
	}
	if !r.fails(d, at("2026-11-20 20:00")) || r.fails(d, at("2026-11-20 20:00")) || !r.fails(d, at("2026-11-21 20:00")) {
		t.Error("each event fails for the first time once")
	}
	if r.wrote(d); !r.fails(d, at("2026-11-21 20:00")) {
		t.Error("what has failed and then succeeded fails for the first time")
	}
	r.warns(d, "bad")
	if another := newDeployment(1, func(d *appsv1.Deployment) { d.UID = "another" }); !r.warns(another, "bad") || r.outdated(another) {
		t.Error("another Deployment of the same name is not known")
	}
}
