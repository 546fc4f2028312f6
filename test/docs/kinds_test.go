// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"regexp"
	"testing"

	"container.training/useless/internal/controller/schedule"
)

// TestKinds requires that the table of kinds in docs/schedule.md describes the stop and the start of each kind.
func TestKinds(t *testing.T) {
	const page = "docs/schedule.md"
	text := read(t, os.DirFS(repository), page)
	for _, k := range schedule.Describe() {
		if !regexp.MustCompile(`(?m)^\| [^|]*\b` + k.Kind + `\b[^|]* \|[^|]+\|[^|]+\|$`).MatchString(text) {
			t.Errorf("the table of kinds in %s does not contain %s", page, k.Kind)
		}
	}
}
