// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package mutants

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// documented matches a comment with a mistake, and below it the command for this mutant.
var documented = regexp.MustCompile(`(?m)^# (.+)\n\$ make mutants TESTFLAGS="-run TestMutants/(\d+)"$`)

// TestDocumentedMutants checks the commands for single mutants in docs/tour.md. A command has only the number of the
// mutant. The number changes when a mutant is added before it, so the mistake must be in the line above the command.
func TestDocumentedMutants(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(repository, "docs", "tour.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	commands := documented.FindAllStringSubmatch(page, -1)
	if n := strings.Count(page, "TestMutants/"); n == 0 || n != len(commands) {
		t.Errorf("docs/tour.md names %d mutants by number, and %d of them have a comment with the mistake", n, len(commands))
	}
	for _, command := range commands {
		mistake, number := command[1], command[2]
		if i, err := strconv.Atoi(number); err != nil || i < 1 || i > len(mutants) || mutants[i-1].mistake != mistake {
			t.Errorf("docs/tour.md: mutant %s is not %q", number, mistake)
		}
	}
}

// TestEveryMutantIsInTheReport requires a row for each mutant in docs/reliability.md. make mutants writes this row when
// a test has found the mutant.
func TestEveryMutantIsInTheReport(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(repository, "docs", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if !strings.Contains(string(raw), " | "+m.mistake+" | `") {
			t.Errorf("docs/reliability.md has no test that finds the mutant %q: run make mutants", m.mistake)
		}
	}
}
