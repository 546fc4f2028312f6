// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docexamples reads the manifests in the documentation, so that tests apply the same text that users copy.
package docexamples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Block returns the first YAML block that begins with key on a page. page is a path relative to docs. The calling test
// must be in a folder directly below test.
func Block(t testing.TB, page, key string) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, page), "\n```yaml\n"+key)
	yaml, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		t.Fatalf("no YAML with %s in docs/%s", key, page)
	}
	return key + yaml + "\n"
}

// Section returns all YAML blocks in the section of a page below a heading, such as "## Events". page is as in Block.
func Section(t testing.TB, page, heading string) (blocks []string) {
	t.Helper()
	_, section, found := strings.Cut(read(t, page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("no heading %s in docs/%s", heading, page)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, rest := range strings.Split(section, "\n```yaml\n")[1:] {
		yaml, _, _ := strings.Cut(rest, "\n```\n")
		blocks = append(blocks, yaml+"\n")
	}
	return blocks
}

func read(t testing.TB, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
