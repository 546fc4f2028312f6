// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"regexp"
	"strings"
	"testing"
)

// releases returns the result of KubernetesReleases.
func releases(t *testing.T) []string {
	t.Helper()
	releases, err := KubernetesReleases()
	if err != nil {
		t.Fatal(err)
	}
	return releases
}

// selected returns the build of the release of Kubernetes that the environment selects.
func selected(t *testing.T) *build {
	t.Helper()
	release, err := kubernetesRelease()
	if err != nil {
		t.Fatal(err)
	}
	b, err := release.newBuild(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSelectRelease checks that each value of KUBERNETES selects its release. It also checks the default.
func TestSelectRelease(t *testing.T) {
	all := releases(t)
	folders := map[Programs]string{}
	for _, release := range all {
		t.Setenv(releaseVariable, release)
		b := selected(t)
		if !strings.HasPrefix(b.version, "v"+release+".") {
			t.Errorf("%s=%s selects %s", releaseVariable, release, b.version)
		}
		if other, found := folders[b.folder]; found {
			t.Errorf("the releases %s and %s have the same folder", release, other)
		}
		folders[b.folder] = release
	}
	t.Setenv(releaseVariable, "")
	if b := selected(t); folders[b.folder] != all[0] {
		t.Errorf("the default is %s, want %s", b.version, all[0])
	}
}

// TestReleasesAreSorted checks that the newest release is first. The first release is the default.
func TestReleasesAreSorted(t *testing.T) {
	all := releases(t)
	for i := 1; i < len(all); i++ {
		if minor(all[i-1]) <= minor(all[i]) {
			t.Errorf("%s comes before %s", all[i-1], all[i])
		}
	}
}

// TestReleaseWithoutNode selects a release that is too old for a node. A control plane can use it.
func TestReleaseWithoutNode(t *testing.T) {
	useFakeGo(t, fakeGo)
	t.Setenv(releaseVariable, "1.30")
	selected(t)
	const want = "KUBERNETES=1.30: a node needs 1.33 or later"
	if err := BuildNode(t.Context(), t.Output()); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

// TestUnknownRelease selects a release that cannot be built. Every function that uses the selected release must return
// an error that lists the releases.
func TestUnknownRelease(t *testing.T) {
	useFakeGo(t, fakeGo)
	want := "KUBERNETES=1.2 is not a release that can be built: choose one of " + strings.Join(releases(t), ", ")
	t.Setenv(releaseVariable, "1.2")
	for name, try := range map[string]func() error{
		"Build":     func() error { _, err := Build(t.Context(), t.Output()); return err },
		"BuildNode": func() error { return BuildNode(t.Context(), t.Output()) },
		"LinkNode":  func() error { _, err := LinkNode(t.TempDir()); return err },
		"Version":   func() error { _, err := Version("olm"); return err },
	} {
		if err := try(); err == nil || err.Error() != want {
			t.Errorf("%s: got error %v, want %s", name, err, want)
		}
	}
}

// olderLibrary is the only library whose patch release differs from Kubernetes. A comment in the .mod file gives the
// reason.
const olderLibrary = "k8s.io/kube-proxy v0.30.4"

// TestModulesOfReleases checks that each module requires Kubernetes and its libraries at the same version.
func TestModulesOfReleases(t *testing.T) {
	for _, release := range releases(t) {
		t.Setenv(releaseVariable, release)
		version := selected(t).version
		mod := read(t, "../tools/kubernetes-"+release+".mod")
		libraries := regexp.MustCompile(`(?m)^\t(k8s\.io/\S+) => \S+ v0\.(\S+)$`).FindAllStringSubmatch(mod, -1)
		if len(libraries) < 25 {
			t.Errorf("kubernetes-%s.mod replaces %d libraries, want 25 or more", release, len(libraries))
		}
		for _, library := range libraries {
			got := library[1] + " v0." + library[2]
			if want := library[1] + strings.Replace(version, "v1.", " v0.", 1); got != want && got != olderLibrary {
				t.Errorf("kubernetes-%s.mod has %s, want %s", release, got, want)
			}
		}
	}
}
