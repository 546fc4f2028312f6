// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build mutants

// Package mutants makes mistakes in copies of the operator's source, one after the other, and sees which test finds each.
// A test that none of them fails tests nothing that matters; a mistake that none finds is one that could be made.
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
	"slices"
	"strings"
	"testing"
	"time"
)

// A mutant is the operator with a mistake.
type mutant struct {
	class int    // of bugs; zero for a whole controller
	bug   string // what is wrong
	edits []edit
	tests []string // that are run when the tests of the edited packages and the simulations find nothing: arguments of go test
}

// An edit replaces a text that a file has exactly once.
type edit struct{ file, old, new string }

// simulations are the tests that run the operator in a simulated cluster.
const simulations = "./test/sim -run ^Test(Crashes|Missed|Random|Stale|TwoLeaders)"

const (
	repository = "../.."
	report     = repository + "/docs/reliability.md"
	begin, end = "<!-- make mutants writes this table -->\n", "<!-- until here -->\n"
)

// TestMutants wants every mutant to fail a test, and writes down which one.
func TestMutants(t *testing.T) {
	dir := t.TempDir()
	copySource(t, dir)
	tests := []string{simulations}
	for _, m := range mutants {
		m.apply(t, dir, false) // all of them, before the first one is tested
		m.apply(t, dir, true)
		tests = append(tests, append(m.packages(), m.tests...)...)
	}
	slices.Sort(tests)
	for _, arguments := range slices.Compact(tests) {
		if test, said := failing(t, dir, arguments); test != "" {
			t.Fatalf("without any mistake, %s fails:\n%s", test, said)
		}
	}
	var rows []string
	for i, m := range mutants {
		t.Run(fmt.Sprintf("%02d", i+1), func(t *testing.T) {
			start := time.Now()
			m.apply(t, dir, false)
			defer m.apply(t, dir, true)
			killer := m.killer(t, dir)
			if killer == "" {
				t.Fatalf("nothing fails: %s", m.bug)
			}
			rows = append(rows, fmt.Sprintf("| %s | %s | `%s` |", m.number(), m.bug, killer))
			fmt.Fprintf(os.Stderr, "%2d of %d: %s: %s (%s)\n", i+1, len(mutants), m.bug, killer, time.Since(start).Round(time.Second))
		})
	}
	if len(rows) == len(mutants) { // all of them, and each was found
		write(t, rows)
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

// apply makes the mistake, or takes it back.
func (m mutant) apply(t *testing.T, dir string, undo bool) {
	t.Helper()
	edits := slices.Clone(m.edits)
	if undo {
		slices.Reverse(edits)
	}
	for _, e := range edits {
		if undo {
			data, err := os.ReadFile(filepath.Join(repository, e.file))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, e.file), data, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		path := filepath.Join(dir, e.file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte(e.old)); n != 1 {
			t.Fatalf("%s has this %d times, not once:\n%s", e.file, n, e.old)
		}
		if err := os.WriteFile(path, bytes.Replace(data, []byte(e.old), []byte(e.new), 1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// killer names the first test that fails, or nothing if none does.
func (m mutant) killer(t *testing.T, dir string) string {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "vet", "-tags=mutants", "./cmd", "./internal/...", "./test/sim")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("it does not compile: %s", out)
	}
	tests := m.packages()
	if !slices.Contains(tests, "./test/sim") {
		tests = append(tests, simulations)
	}
	if m.tests != nil {
		tests = append(m.packages(), m.tests...)
	}
	for _, arguments := range tests {
		if test, _ := failing(t, dir, arguments); test != "" {
			return test
		}
	}
	return ""
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

// failing runs tests until one fails. It returns its name, and what it said.
func failing(t *testing.T, dir, arguments string) (test, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-failfast", "-count=1", "-timeout=5m"}, strings.Fields(arguments)...)...)
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
	return strings.TrimPrefix(where, "./") + " " + name, strings.Join(outputs[name], "")
}

// write puts the table into the documentation.
func write(t *testing.T, rows []string) {
	t.Helper()
	page, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", report)
	}
	table := "\n| class | mistake | found first by |\n|---|---|---|\n" + strings.Join(rows, "\n") + "\n\n"
	if err := os.WriteFile(report, []byte(before+begin+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
