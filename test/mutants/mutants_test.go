// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package mutants

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// simulations are the tests that run the operator in a simulated cluster.
const simulations = "./test/sim -run ^Test(Crashes|Missed|Random|Reordered|Stale|TimeTravel|TwoLeaders)$"

const (
	report     = repository + "/docs/reliability.md"
	begin, end = "<!-- make mutants writes this table -->\n", "<!-- until here -->\n"
)

// TestMutants wants every mutant to fail a test that passes without it, and writes down which one.
func TestMutants(t *testing.T) {
	dir := t.TempDir()
	copySource(t, dir)
	sound := map[string]bool{} // tests that pass without a mistake
	for i, m := range mutants {
		t.Run(fmt.Sprintf("%02d", i+1), func(t *testing.T) {
			for _, arguments := range m.suites() {
				if !sound[arguments] {
					if test, said := failing(t, dir, arguments); test != "" {
						t.Fatalf("without any mistake, %s fails:\n%s", test, said)
					}
					sound[arguments] = true
				}
			}
			start := time.Now()
			before, after, err := m.edited(dir)
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, dir, after)
			defer overwrite(t, dir, before)
			killer := m.killer(t, dir)
			tell(t, m.bug, fmt.Sprintf("| %s | %s | `%s` |", m.number(), m.bug, killer))
			fmt.Fprintf(os.Stderr, "%2d of %d: %s: %s (%s)\n", i+1, len(mutants), m.bug, killer, time.Since(start).Round(time.Second))
		})
	}
}

func (m mutant) number() string {
	if m.class == 0 {
		return ""
	}
	return fmt.Sprint(m.class)
}

// copySource copies what git knows of, as it is now.
func copySource(t *testing.T, dir string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = repository
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.Trim(string(names), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join(repository, name))
		if os.IsNotExist(err) {
			continue // deleted, and git has yet to hear of it
		}
		data, reading := os.ReadFile(filepath.Join(repository, name))
		if err != nil || reading != nil {
			t.Fatal(err, reading)
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// overwrite gives files of a folder another content.
func overwrite(t *testing.T, dir string, contents map[string]string) {
	t.Helper()
	for file, content := range contents {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// killer names the first test that fails.
func (m mutant) killer(t *testing.T, dir string) string {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "vet", "-tags=mutants", "./cmd", "./internal/...", "./test/sim")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("it does not compile: %s", out)
	}
	for _, arguments := range m.suites() {
		if test, _ := failing(t, dir, arguments); test != "" {
			return test
		}
	}
	tell(t, m.bug, "")
	t.Fatalf("nothing fails: %s", m.bug)
	return ""
}

// suites are arguments of go test, one for each of the packages that are edited, and then for what runs the operator.
func (m mutant) suites() []string {
	if m.tests != nil {
		return append(m.packages(), m.tests...)
	}
	return append(m.packages(), simulations)
}

// packages are those of the source that is edited, other than the simulator.
func (m mutant) packages() (packages []string) {
	for _, e := range m.edits {
		if pkg := "./" + filepath.Dir(e.file); strings.HasPrefix(pkg, "./internal") && !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
	}
	return packages
}

// timed is a test that may also fail because the computer does something else.
const timed = "^TestNoOpReconcile$"

// turn is the part of a test's name that says by which of two processors it was run.
var turn = regexp.MustCompile(`/runs/\d+$`)

// failing runs tests until one fails. It returns its name, and what it said.
func failing(t *testing.T, dir, arguments string) (test, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-failfast", "-count=1", "-timeout=5m", "-skip", timed}, strings.Fields(arguments)...)...)
	command.Dir = dir
	out, err := command.Output()
	if err == nil {
		return "", ""
	}
	name, where := "", strings.Fields(arguments)[0]
	outputs := map[string][]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var event struct{ Action, Package, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}
		outputs[event.Test] = append(outputs[event.Test], event.Output)
		panicked := strings.HasPrefix(event.Output, "panic: ")
		if event.Test != "" && name == "" && (event.Action == "fail" || panicked) {
			name = event.Test
		}
	}
	if name == "" {
		t.Fatalf("go test %s: %v, and no test has failed:\n%s", arguments, err, out)
	}
	return strings.TrimPrefix(where, "./") + " " + turn.ReplaceAllString(name, ""), strings.Join(outputs[name], "")
}

// tell puts the row of a mutant into the table in the documentation, or takes it out if it is empty. Those of others stay, so
// that one mutant can be run alone.
func tell(t *testing.T, bug, row string) {
	t.Helper()
	page, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", report)
	}
	rows := map[string]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) == 3 {
			rows[cells[1]] = strings.TrimSpace(line)
		}
	}
	rows[bug] = row
	var lines []string
	for _, m := range mutants {
		if rows[m.bug] != "" {
			lines = append(lines, rows[m.bug])
		}
	}
	table = "\n| class | mistake | found first by |\n|---|---|---|\n" + strings.Join(lines, "\n") + "\n\n"
	if err := os.WriteFile(report, []byte(before+begin+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
