// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/hack/cluster"
)

const repository = "../.."

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		reason   string
		events   string
		row      string
		progress string
	}{{
		reason: "subtests do not count, and a difference appears once",
		events: `
{"Action":"run","Test":"TestA"}
{"Action":"attr","Test":"TestA/one","Key":"different","Value":"no b"}
{"Action":"attr","Test":"TestA/one","Key":"other","Value":"c"}
{"Action":"pass","Test":"TestA/one"}
{"Action":"pass","Test":"TestA","Elapsed":1.5}
{"Action":"attr","Test":"TestB","Key":"different","Value":"no a"}
{"Action":"attr","Test":"TestB","Key":"different","Value":"no b"}
{"Action":"pass","Test":"TestB"}
{"Action":"skip","Test":"TestC"}
{"Action":"pass"}`,
		row:      "| v1.2.3 | 2026-01-02 | 2 passed, 1 skipped | no a<br>no b |",
		progress: "Kubernetes v1.2.3: 2 passed, 1 skipped: TestC (0.0 s)\n",
	}, {
		reason: "the output of a failed test is in the progress",
		events: `
{"Action":"output","Test":"TestA","Output":"because of "}
{"Action":"output","Test":"TestA/one","Output":"this\n"}
{"Action":"output","Test":"TestB","Output":"not this\n"}
{"Action":"fail","Test":"TestA"}
{"Action":"pass","Test":"TestB"}
{"Action":"fail"}`,
		row:      "| v1.2.3 | 2026-01-02 | 1 failed, 1 passed |  |",
		progress: "because of this\nKubernetes v1.2.3: 1 failed, 0 passed: TestA (0.0 s)\n",
	}, {
		reason: "a package that fails without a failed test counts as a failure",
		events: `
{"Action":"output","Output":"cannot start the control plane\n"}
{"Action":"fail"}`,
		row:      "| v1.2.3 | 2026-01-02 | 1 failed, 0 passed |  |",
		progress: "cannot start the control plane\n",
	}} {
		t.Run(tt.reason, func(t *testing.T) {
			r := &result{version: "v1.2.3", date: "2026-01-02"}
			var progress strings.Builder
			if err := r.read(strings.NewReader(tt.events), &progress); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.row, r.row()); diff != "" {
				t.Errorf("row (-want +got):\n%s", diff)
			}
			if !strings.Contains(progress.String(), tt.progress) {
				t.Errorf("progress is\n%s\nwant it to have\n%s", progress.String(), tt.progress)
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	write := func(table string) {
		t.Helper()
		if err := os.WriteFile(page, []byte("before\n"+begin+table+end+"after\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const heading = "\n| Kubernetes | date | tests | what is different |\n|---|---|---|---|\n"
	for _, tt := range []struct{ reason, table, want string }{
		{"the first result", "", heading + "| v1.35.9 | today | 0 passed |  |\n\n"},
		{
			"a newer result replaces an older one; a release without a module is removed; the newest release is first",
			heading + "| v1.30.1 | then | a | b |\n| v1.36.1 | then | a | b |\n| v1.35.2 | then | a | b |\n| v1.29.1 | then | a | b |\n\n",
			heading + "| v1.36.1 | then | a | b |\n| v1.35.9 | today | 0 passed |  |\n| v1.30.1 | then | a | b |\n\n",
		},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			write(tt.table)
			if err := update(page, []string{"1.36", "1.35", "1.30"}, &result{version: "v1.35.9", date: "today"}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff("before\n"+begin+tt.want+end+"after\n", read(t, page)); diff != "" {
				t.Errorf("page (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPublished compares the releases that can be built with the table, and the oldest one with the documentation.
func TestPublished(t *testing.T) {
	releases, err := cluster.KubernetesReleases()
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(read(t, filepath.Join(repository, report)), begin)
	table, _, _ = strings.Cut(table, end)
	rows := regexp.MustCompile(`(?m)^\| (v[\d.]+) \| [\d-]{10} \| \d+ passed`).FindAllStringSubmatch(table, -1)
	if len(rows) == 0 && !strings.Contains(table, "|") {
		t.Skip("the table is empty; run make test-versions")
	}
	var passed []string
	for _, row := range rows {
		passed = append(passed, row[1])
	}
	var pinned []string
	for _, release := range releases {
		pinned = append(pinned, pinnedVersion(t, release))
	}
	if diff := cmp.Diff(pinned, passed); diff != "" {
		t.Errorf("releases with a row without failures in %s (-want +got):\n%s", report, diff)
	}
	oldest := releases[len(releases)-1]
	for _, statement := range []struct{ file, text string }{
		{"README.md", "Kubernetes " + oldest + " or later"},
		{"config/manifests/bases/useless-operator.clusterserviceversion.yaml", "Kubernetes " + oldest + " or later"},
		{"config/manifests/bases/useless-operator.clusterserviceversion.yaml", "minKubeVersion: " + oldest + ".0"},
		{"charts/useless-operator/Chart.yaml", `kubeVersion: ">=` + oldest + `.0-0"`},
		{"docs/versions.md", "Kubernetes " + oldest + " or later"},
	} {
		if !strings.Contains(read(t, filepath.Join(repository, statement.file)), statement.text) {
			t.Errorf("%s does not contain %q", statement.file, statement.text)
		}
	}
}

// pinnedVersion returns the version that hack/tools pins for a release, such as v1.35.4 for 1.35.
func pinnedVersion(t *testing.T, release string) string {
	t.Helper()
	module := read(t, filepath.Join(repository, "hack", "tools", "kubernetes-"+release+".mod"))
	required := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes (v[\d.]+)`).FindStringSubmatch(module)
	if required == nil {
		t.Fatalf("the module of Kubernetes %s does not require k8s.io/kubernetes", release)
	}
	return required[1]
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
