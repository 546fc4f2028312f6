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
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n```yaml\n"+key)
	yaml, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		t.Fatalf("no YAML with %s in docs/%s", key, page)
	}
	return key + yaml + "\n"
}
