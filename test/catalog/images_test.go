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

// match returns the part of a file that the first group of the pattern matches.
func match(t *testing.T, name, pattern string) string {
	t.Helper()
	found := regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(text(t, name))
	if found == nil {
		t.Fatalf("%s does not match %s", name, pattern)
	}
	return found[1]
}

// versioned returns the files in which TestVersions looks for versions.
func versioned(t *testing.T) []string {
	t.Helper()
	files := []string{"Dockerfile", "catalog.Dockerfile", "README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "test/e2e/*"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s matches %v, error %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	return files
}

// newestKubernetes returns the path of the module file of the default Kubernetes release.
func newestKubernetes(t *testing.T) string {
	t.Helper()
	releases, err := cluster.KubernetesReleases()
	if err != nil {
		t.Fatal(err)
	}
	return "hack/tools/kubernetes-" + releases[0] + ".mod"
}

// TestVersions checks that each version is the same in all files, including the documentation and the tests.
func TestVersions(t *testing.T) {
	files := versioned(t)
	for reason, test := range map[string]struct {
		pattern, from, pinned string
		in                    map[string]int // minimum number of matches by file
	}{
		"opm: the catalog's image and the tests use the same version": {
			`/opm:v([\d.]+\d)`, "hack/tools/opm.mod", `github.com/operator-framework/operator-registry v(\S+)`,
			map[string]int{"catalog.Dockerfile": 1, "test/e2e/bundle_test.go": 1},
		},
		"operator-sdk scorecard: pulls the image of its own version": {
			`/scorecard-test:v([\d.]+\d)`, "hack/tools/operator-sdk.mod", `github.com/operator-framework/operator-sdk v(\S+)`,
			map[string]int{"docs/installing.md": 1},
		},
		"operator images in the documentation": {
			`useless-operator(?:-bundle|-catalog)?[.:]v(\d[\w.]*\w)`, "config/manager/kustomization.yaml", `newTag: v(\S+)`,
			map[string]int{"docs/installing.md": 8, "docs/reference.md": 1, "README.md": 3},
		},
		"kubectl in the README": {
			`kubectl v([\d.]+\d)`, newestKubernetes(t), `k8s\.io/kubernetes v(\S+)`, map[string]int{"README.md": 1},
		},
		"image of VirtualMachines in the documentation": {
			`registry\.k8s\.io/pause:([\d.]+\d)`, "internal/controller/virtualmachine/controller.go", `registry\.k8s\.io/pause:([\d.]+)`,
			map[string]int{"docs/installing.md": 1, "docs/reference.md": 1},
		},
		"Go in the Dockerfile": {
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
						t.Errorf("%s has %s, but %s has %s", file, found[0], test.from, want)
					}
				}
			}
			for file, least := range test.in {
				if got[file] < least {
					t.Errorf("%s has %d matches of %s, want at least %d", file, got[file], test.pattern, least)
				}
			}
		})
	}
}

// TestContext checks that the build context has exactly the top-level files and folders that the Dockerfiles use.
func TestContext(t *testing.T) {
	ignore := strings.Split(strings.TrimSpace(text(t, ".dockerignore")), "\n")
	if ignore[0] != "*" {
		t.Errorf(".dockerignore starts with %q, want *: otherwise the build context contains files that no Dockerfile copies", ignore[0])
	}
	copied := map[string]bool{}
	for _, file := range dockerfiles {
		for _, line := range regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(text(t, file), -1) {
			for source := range strings.FieldsSeq(line[1]) {
				top, _, _ := strings.Cut(source, "/")
				copied["!"+top] = true
				if _, err := os.Stat(filepath.Join(root, source)); err != nil {
					t.Errorf("%s copies a missing file: %v", file, err)
				}
				if !slices.Contains(ignore, "!"+top) {
					t.Errorf("%s copies %s, but .dockerignore excludes it", file, source)
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
		"cross-compiles for other platforms without emulation": `^FROM (--platform=\$BUILDPLATFORM) \S+golang`,
		"has no shell, to reduce the attack surface":           `^FROM (scratch)$`,
		"has a numeric user, for runAsNonRoot":                 `^USER (\d+:\d+)$`,
		"has a version label":                                  `(org.opencontainers.image.version=\$VERSION)`,
		"has a title label":                                    `(org.opencontainers.image.title=.+)`,
		"has a license label":                                  `(org.opencontainers.image.licenses="?Apache-2.0"?)`,
		"has a description label, which registries show":       `(org.opencontainers.image.description=.+)`,
	} {
		t.Run(reason, func(t *testing.T) { match(t, "Dockerfile", pattern) })
	}
}

func TestCatalogImage(t *testing.T) {
	configs := match(t, "catalog.Dockerfile", `^LABEL operators\.operatorframework\.io\.index\.configs\.v1=(\S+)$`)
	for reason, pattern := range map[string]string{
		"serves the folder in the label":                `^CMD \["serve", "(` + configs + `)"\]$`,
		"copies the catalog to the folder in the label": `^COPY catalog/useless-operator (` + configs + `)/useless-operator$`,
	} {
		t.Run(reason, func(t *testing.T) { match(t, "catalog.Dockerfile", pattern) })
	}
}
