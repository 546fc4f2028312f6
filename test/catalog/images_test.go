// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"container.training/useless/hack/cluster"
)

var dockerfiles = []string{"Dockerfile", "bundle.Dockerfile", "catalog.Dockerfile"}

func text(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// match returns what the group of a pattern matches in a file.
func match(t *testing.T, name, pattern string) string {
	t.Helper()
	found := regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(text(t, name))
	if found == nil {
		t.Fatalf("%s has nothing like %s", name, pattern)
	}
	return found[1]
}

// versioned are the files in which versions are written by hand.
func versioned(t *testing.T) []string {
	t.Helper()
	files := []string{"Dockerfile", "catalog.Dockerfile", "README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "test/e2e/*"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s finds %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	return files
}

// newestKubernetes is the module of the release of Kubernetes that is the default.
func newestKubernetes(t *testing.T) string {
	t.Helper()
	releases, err := cluster.KubernetesReleases()
	if err != nil {
		t.Fatal(err)
	}
	return "hack/tools/kubernetes-" + releases[0] + ".mod"
}

// TestVersions makes an update of a version go everywhere, also to what people copy and to what a test looks for.
func TestVersions(t *testing.T) {
	files := versioned(t)
	for reason, test := range map[string]struct {
		pattern, from, pinned string
		in                    map[string]int // how often at least
	}{
		"another opm refuses the cache": {
			`/opm:v([\d.]+\d)`, "hack/tools/opm.mod", `github.com/operator-framework/operator-registry v(\S+)`,
			map[string]int{"catalog.Dockerfile": 2, "test/e2e/bundle_test.go": 1},
		},
		"operator-sdk scorecard pulls the image of its own version": {
			`/scorecard-test:v([\d.]+\d)`, "hack/tools/operator-sdk.mod", `github.com/operator-framework/operator-sdk v(\S+)`,
			map[string]int{"docs/installing.md": 1},
		},
		"people copy the images of the release at hand": {
			`useless-operator(?:-bundle|-catalog)?[.:]v(\d[\w.]*\w)`, "config/manager/kustomization.yaml", `newTag: v(\S+)`,
			map[string]int{"docs/installing.md": 8, "docs/reference.md": 1, "README.md": 3},
		},
		"the README says what is compiled": {
			`kubectl v([\d.]+\d)`, newestKubernetes(t), `k8s\.io/kubernetes v(\S+)`, map[string]int{"README.md": 1},
		},
		"clusters without internet mirror the image of VirtualMachines": {
			`registry\.k8s\.io/pause:([\d.]+\d)`, "internal/controller/virtualmachine/controller.go", `registry\.k8s\.io/pause:([\d.]+)`,
			map[string]int{"docs/installing.md": 1, "docs/reference.md": 1},
		},
		"Dockerfile builds with the Go that go.mod asks for": {
			`golang:(\S+)`, "go.mod", `^go (\d+\.\d+)`, map[string]int{"Dockerfile": 1},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			want := match(t, test.from, test.pinned)
			got := map[string]int{}
			for _, file := range files {
				for _, found := range regexp.MustCompile(test.pattern).FindAllStringSubmatch(text(t, file), -1) {
					got[file]++
					if found[1] != want {
						t.Errorf("%s has %s, and %s %s", file, found[0], test.from, want)
					}
				}
			}
			for file, least := range test.in {
				if got[file] < least {
					t.Errorf("%s has %d of %s, fewer than %d", file, got[file], test.pattern, least)
				}
			}
		})
	}
}

// TestContext finds out whether builders are given what the Dockerfiles copy.
func TestContext(t *testing.T) {
	ignore := strings.Split(strings.TrimSpace(text(t, ".dockerignore")), "\n")
	if ignore[0] != "*" {
		t.Errorf(".dockerignore starts with %q: what it does not name goes to the builder", ignore[0])
	}
	copied := map[string]bool{}
	for _, file := range dockerfiles {
		for _, line := range regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(text(t, file), -1) {
			for source := range strings.FieldsSeq(line[1]) {
				top, _, _ := strings.Cut(source, "/")
				copied["!"+top] = true
				if _, err := os.Stat(filepath.Join(root, source)); err != nil {
					t.Errorf("%s copies what there is not: %v", file, err)
				}
				if !slices.Contains(ignore, "!"+top) {
					t.Errorf("%s copies %s, which .dockerignore leaves out", file, source)
				}
			}
		}
	}
	for _, line := range ignore {
		if strings.HasPrefix(line, "!") && !copied[line] {
			t.Errorf(".dockerignore has %s, which no Dockerfile copies", line)
		}
	}
}

func TestOperatorImage(t *testing.T) {
	for reason, pattern := range map[string]string{
		"images for other platforms are compiled, not emulated": `^FROM (--platform=\$BUILDPLATFORM) \S+golang`,
		"an image without a shell has little to attack":         `^FROM (scratch)$`,
		"a cluster that asks for runAsNonRoot wants a number":   `^USER (\d+:\d+)$`,
		"whoever has the image can tell its version":            `(org.opencontainers.image.version=\$VERSION)`,
		"whoever has the image can tell what it is":             `(org.opencontainers.image.title=.+)`,
		"whoever has the image can tell what it may do with it": `(org.opencontainers.image.licenses="?Apache-2.0"?)`,
		"registries show what it is for":                        `(org.opencontainers.image.description=.+)`,
	} {
		t.Run(reason, func(t *testing.T) { match(t, "Dockerfile", pattern) })
	}
}

func TestCatalogImage(t *testing.T) {
	configs := match(t, "catalog.Dockerfile", `^LABEL operators\.operatorframework\.io\.index\.configs\.v1=(\S+)$`)
	for reason, pattern := range map[string]string{
		"what is served is where the label says":                  `^CMD \["serve", "(` + configs + `)"`,
		"what is copied is where the label says":                  `^COPY catalog/useless-operator (` + configs + `)/useless-operator$`,
		"a pod that had to make the cache would start later":      `^(RUN .*"--cache-only"\])$`,
		"the cache for other platforms is made without emulation": `^FROM (--platform=\$BUILDPLATFORM) \S+ AS builder$`,
	} {
		t.Run(reason, func(t *testing.T) { match(t, "catalog.Dockerfile", pattern) })
	}
}
