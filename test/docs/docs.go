// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs reads the manifests in the documentation, so that tests apply what people copy.
package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Block returns the first YAML on a page of the documentation that begins with a key. The page's path starts at the folder
// docs; tests that read one are in a folder of test.
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
