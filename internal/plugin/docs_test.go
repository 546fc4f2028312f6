// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentedOutput runs the example of docs/kubectl-useless.md. The page must contain its output.
func TestDocumentedOutput(t *testing.T) {
	raw, err := os.ReadFile("../../docs/kubectl-useless.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	_, rest, _ := strings.Cut(page, "\n```yaml\n")
	manifest, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("the page has no manifest")
	}
	for _, c := range []struct{ reason, manifest string }{
		{"the next events", manifest},
		{"a mistake", strings.Replace(manifest, "20:00", "25:00", 1)},
	} {
		t.Run(c.reason, func(t *testing.T) {
			stdout, _, _ := run(c.manifest, "schedule", "check", "-f", "-")
			if stdout == "" || !strings.Contains(page, "\n"+stdout) {
				t.Errorf("docs/kubectl-useless.md does not contain this output:\n%s", stdout)
			}
		})
	}
}
