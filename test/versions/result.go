// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// report is the page with the table. The table is between the lines begin and end.
const (
	report     = "docs/versions.md"
	begin, end = "<!-- make test-versions writes this table -->\n", "<!-- end of the table -->\n"
)

// attribute is the key of t.Attr that a test uses to report a difference of a release.
const attribute = "different"

// result is the result of the tests on one release.
type result struct {
	version, date           string
	passed, failed, skipped int // tests, without their subtests
	differences             []string
}

// event is a line of go test -json.
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64
}

// read reads the output of go test -json. It writes one line for each test to progress, and the output of failed tests.
func (r *result) read(out io.Reader, progress io.Writer) error {
	outputs := map[string]*strings.Builder{} // by top-level test, with the output of its subtests; "" is the package
	for events := json.NewDecoder(out); ; {
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the output of go test: %w", err)
		}
		name, _, _ := strings.Cut(e.Test, "/")
		if outputs[name] == nil {
			outputs[name] = &strings.Builder{}
		}
		outputs[name].WriteString(e.Output)
		if e.Action == "attr" && e.Key == attribute && !slices.Contains(r.differences, e.Value) {
			r.differences = append(r.differences, e.Value)
		}
		if e.Test == name {
			r.count(e, outputs[name].String(), progress)
		}
	}
}

// count counts a test that has ended. If the package fails and no test has failed, it counts the package as a failed
// test.
func (r *result) count(e event, output string, progress io.Writer) {
	switch {
	case e.Action == "fail" && (e.Test != "" || r.failed == 0):
		r.failed++
		fmt.Fprint(progress, output)
	case e.Test == "":
		return
	case e.Action == "pass":
		r.passed++
	case e.Action == "skip":
		r.skipped++
	default:
		return
	}
	fmt.Fprintf(progress, "Kubernetes %s: %s: %s (%.1f s)\n", r.version, r.counts(), cmp.Or(e.Test, "test/integration"), e.Elapsed)
}

// counts returns the numbers of passed, failed and skipped tests as text.
func (r *result) counts() string {
	counts := []string{fmt.Sprintf("%d passed", r.passed)}
	if r.failed > 0 {
		counts = append([]string{fmt.Sprintf("%d failed", r.failed)}, counts...)
	}
	if r.skipped > 0 {
		counts = append(counts, fmt.Sprintf("%d skipped", r.skipped))
	}
	return strings.Join(counts, ", ")
}

// row returns the row of the release in the table.
func (r *result) row() string {
	slices.Sort(r.differences)
	return fmt.Sprintf("| %s | %s | %s | %s |", r.version, r.date, r.counts(), strings.Join(r.differences, "<br>"))
}

// update writes the row of a result into the table of the page. It keeps the rows of the other releases.
func update(path string, releases []string, r *result) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(page), begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s lacks the lines around the table", path)
	}
	lines := append([]string{r.row()}, strings.Split(table, "\n")...) // IndexFunc finds the new row first, not the old row
	var rows []string
	for _, release := range releases {
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "| v"+release+".") })
		if i >= 0 {
			rows = append(rows, lines[i])
		}
	}
	table = "\n| Kubernetes | date | tests | what is different |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n\n"
	return os.WriteFile(path, []byte(before+begin+table+end+after), 0o644)
}
