// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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

// TestBaseImages makes an update of a version go everywhere.
func TestBaseImages(t *testing.T) {
	for _, base := range regexp.MustCompile(`opm:\S+`).FindAllString(text(t, "catalog.Dockerfile"), -1) {
		if want := "opm:" + match(t, "hack/tools/opm.mod", `github.com/operator-framework/operator-registry (v\S+)`); base != want {
			t.Errorf("catalog.Dockerfile starts from %s, and hack/tools pins %s: another opm refuses the cache", base, want)
		}
	}
	if got, want := match(t, "Dockerfile", `golang:(\S+)`), match(t, "go.mod", `^go (\d+\.\d+)`); got != want {
		t.Errorf("Dockerfile builds with Go %s, and go.mod asks for %s", got, want)
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
		"what is served is where the label says":             `^CMD \["serve", "(` + configs + `)"`,
		"what is copied is where the label says":             `^COPY catalog/useless-operator (` + configs + `)/useless-operator$`,
		"a pod that had to make the cache would start later": `^(RUN .*"--cache-only"\])$`,
	} {
		t.Run(reason, func(t *testing.T) { match(t, "catalog.Dockerfile", pattern) })
	}
}
