// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/api/useless/v1beta1"
)

// The tests in this file install only the files in the folders of releases, and no other files of this repository. make
// release-check pushes the images of the folders to the registry. RELEASES lists the folders, the oldest release first.
// Each test installs the oldest release, and upgrades to the others. RELEASE is the folder of the release that make
// release-check checks.

// releaseFolder is a folder that make release has made.
type releaseFolder struct{ path, version string }

// releases returns the releases of make release-check. Without them, the test is skipped.
func releases(t *testing.T) (all []releaseFolder) {
	t.Helper()
	for _, path := range filepath.SplitList(os.Getenv("RELEASES")) {
		charts, err := filepath.Glob(filepath.Join(path, "useless-operator-*.tgz"))
		if err != nil || len(charts) != 1 {
			t.Fatalf("%s has the charts %v, want exactly one; error %v", path, charts, err)
		}
		version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(charts[0]), "useless-operator-"), ".tgz")
		all = append(all, releaseFolder{path, version})
	}
	if len(all) == 0 {
		t.Skip("RELEASES is not set: run make release-check")
	}
	return all
}

func TestReleaseManifests(t *testing.T) {
	checkReleases(t, releases(t), func(r releaseFolder, first bool) {
		manifest := filepath.Join(r.path, "install.yaml")
		must(t, "kubectl", "apply", "-f", manifest)
		if first {
			t.Cleanup(func() { uninstall(t, readManifest(t, manifest)) })
		}
		must(t, "kubectl", "rollout", "status", "-n", system, "deployment/useless-controller-manager", "--timeout=2m")
		if r.checked() {
			t.Run("plugin", func(t *testing.T) { checkPlugin(t, r) })
		}
	})
}

// checked reports whether make release-check checks this release. The others are only for upgrades.
func (r releaseFolder) checked() bool { return r.path == os.Getenv("RELEASE") }

// checkPlugin verifies the checksums of a release. Then it runs the kubectl plugin from the archive for this platform.
func checkPlugin(t *testing.T, r releaseFolder) {
	t.Helper()
	must(t, "sh", "-ec", `cd "$0" && sha256sum --check --quiet --strict SHA256SUMS`, r.path)
	bin := t.TempDir()
	archive := fmt.Sprintf("kubectl-useless-%s-%s.tar.gz", runtime.GOOS, runtime.GOARCH)
	must(t, "tar", "-xzf", filepath.Join(r.path, archive), "-C", bin)
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))

	if got := strings.TrimSpace(must(t, "kubectl", "useless", "--version")); got != "v"+r.version {
		t.Errorf("the plugin has the version %s, want v%s", got, r.version)
	}
	namespace := newNamespace(t, "plugin")
	mustRead(t, newMachine+"---"+office, "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine/machine", "--timeout=1m")
	must(t, "kubectl", "useless", "flip", "-n", namespace, "machine")
	checkEvents(t, namespace, "machine/machine", `Normal +Flipped`)
	annotateSchedule(t, namespace, "deployment/office", clockTime(12*time.Hour), clockTime(11*time.Hour))
	if output := must(t, "kubectl", "useless", "schedule", "list", "-n", namespace); !strings.Contains(output, "office") {
		t.Errorf("the list of schedules has no office:\n%s", output)
	}
	must(t, "kubectl", "useless", "sleep", "-n", namespace, "deployment/office")
	must(t, "kubectl", "wait", "-n", namespace, "deployment/office", "--for=jsonpath={.spec.replicas}=0", "--timeout=1m")
}

func readManifest(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

func TestReleaseHelm(t *testing.T) {
	all := releases(t)
	defer uninstallChart(t) // not a cleanup: the context of the test ends before cleanups, and helm needs it
	checkReleases(t, all, func(r releaseFolder, _ bool) {
		helm(t, "upgrade", filepath.Join(r.path, "useless-operator-"+r.version+".tgz"), "--install", "--create-namespace",
			"--wait")
	})
}

func TestReleaseBundle(t *testing.T) {
	checkReleases(t, releases(t), func(r releaseFolder, first bool) {
		if first {
			must(t, "kubectl", "create", "namespace", system)
			t.Cleanup(func() { sweep(t) })
			runBundle(t, bundleImage(r.version))
		} else {
			must(t, "operator-sdk", "run", "bundle-upgrade", bundleImage(r.version), "--namespace", system, "--timeout", "5m")
		}
		checkSucceeded(t, system, r.version)
	})
}

// TestReleaseCatalog upgrades only between releases that are in the newest catalog, because OLM upgrades only along a
// channel. This catalog must contain at least two releases: the checked release and the later one.
func TestReleaseCatalog(t *testing.T) {
	all := releases(t)
	catalog := readManifest(t, filepath.Join(all[len(all)-1].path, "catalog.yaml"))
	inCatalog := slices.DeleteFunc(all, func(r releaseFolder) bool {
		return !strings.Contains(catalog, "\nname: "+packageName+".v"+r.version+"\n")
	})
	if len(inCatalog) < 2 {
		t.Fatalf("of the releases, the newest catalog has only %v", inCatalog)
	}
	checkReleases(t, inCatalog, func(r releaseFolder, first bool) {
		if first {
			// checkOperator expects the default limits of the operator.
			manifests, _, _ := strings.Cut(documentedSubscription(t), "  config:")
			mustRead(t, strings.Replace(manifests, catalogImage(currentVersion), catalogImage(r.version), 1), "kubectl", "apply", "-f", "-")
			t.Cleanup(func() { sweep(t) })
			t.Cleanup(func() { cleanUp(t, "catalogsource", "-n", "olm", "useless") })
		} else {
			must(t, "kubectl", "patch", "-n", "olm", "catalogsource", "useless", "--type=merge",
				"-p", `{"spec":{"image":"`+catalogImage(r.version)+`"}}`)
		}
		awaitVersion(t, r.version)
	})
}

// checkReleases installs each release. It checks that the release's operator runs, and that it turns a switch of the
// same Machine down. The Machine's UID and spec must not change. For the release that make release-check checks,
// checkReleases also runs checkOperator.
func checkReleases(t *testing.T, all []releaseFolder, install func(r releaseFolder, first bool)) {
	t.Helper()
	var user string
	var machine v1beta1.Machine
	for i, r := range all {
		install(r, i == 0)
		checkRunning(t, r)
		if i == 0 {
			user = newNamespace(t, "release")
			mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
			must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=1m")
			machine = get[v1beta1.Machine](t, "-n", user, newMachines, "machine")
		}
		must(t, "kubectl", "patch", "-n", user, "switch", "machine-0", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
		must(t, "kubectl", "wait", "-n", user, "--for=jsonpath={.spec.position}=down", "switch/machine-0", "--timeout=1m")
		after := get[v1beta1.Machine](t, "-n", user, newMachines, "machine")
		if diff := cmp.Diff(machine.Spec, after.Spec); diff != "" || after.UID != machine.UID {
			t.Errorf("release %s has changed a Machine (-before +after):\n%s", r.version, diff)
		}
		if r.checked() {
			checkOperator(t, system)
		}
	}
}

// checkRunning waits until all Pods of the operator have the image of a release.
func checkRunning(t *testing.T, r releaseFolder) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		for _, pod := range operatorPods(t, system) {
			if image := pod.Spec.Containers[0].Image; !strings.HasSuffix(image, "/useless-operator:v"+r.version) {
				return pod.Name + " has the image " + image
			}
		}
		return ""
	})
}
