// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// raced returns the records of a race with two rounds. seconds maps each subject to its time per child.
func raced(size string, seconds map[string]float64) (records results) {
	for subject, each := range seconds {
		for round := range 2 {
			records = append(records, Record{
				Experiment: "convergence", Case: size, Subject: subject, Round: round + 1,
				Values: map[string]float64{"seconds": 100 * each, "children": 100},
			})
		}
		records = append(records, Record{
			Experiment: "convergence", Case: size, Subject: subject,
			Values: map[string]float64{"children": 200},
		})
	}
	return records
}

func TestMeasurements(t *testing.T) {
	records := raced("10000x10", map[string]float64{"ours": 1, "minimal client": 2})
	add := func(experiment, kase string, round int, values map[string]float64) {
		records = append(records, Record{Experiment: experiment, Case: kase, Subject: "ours", Round: round, Values: values})
	}
	add("convergence", "10000x10", 3, map[string]float64{"seconds": 1e6, "children": 1})
	for round, p99 := range []float64{1, 2, 9} {
		add("flips", "", round+1, map[string]float64{"p99_seconds": p99})
	}
	add("flips", "", 0, map[string]float64{"p99_seconds": 7, "early": 1, "doubled": 2})
	add("flips", "b", 0, map[string]float64{"crowded": 3})
	for _, test := range []struct {
		reason  string
		measure measurement
		want    estimate
		none    bool
	}{
		{reason: "rounds of both subjects", measure: rate("10000x10", minimalClient), want: exactly(2)},
		{reason: "no record of the other subject", measure: rate("10000x10", creator), none: true},
		{reason: "no record of the size", measure: rate("1000x10", minimalClient), none: true},
		{reason: "median of all rounds", measure: typical("flips", "", "p99_seconds"), want: estimate{2, 1, 9}},
		{reason: "highest value of all rounds", measure: highest("flips", "", "p99_seconds"), want: exactly(9)},
		{reason: "no record with the value for the highest", measure: highest("flips", "", "p50_seconds"), none: true},
		{reason: "no record with the value", measure: typical("flips", "", "p50_seconds"), none: true},
		{reason: "record of all rounds", measure: overall("flips", "", "p99_seconds"), want: exactly(7)},
		{reason: "no such value in it", measure: overall("flips", "", "p50_seconds"), none: true},
		{reason: "no record of all rounds", measure: overall("flips", "c", "p99_seconds"), none: true},
		{reason: "wrong flips of all cases", measure: wrongFlips("flips"), want: exactly(6)},
	} {
		got, ok := test.measure(records)
		if ok == test.none || ok && got != test.want {
			t.Errorf("%s: got %+v, %t, want %+v", test.reason, got, ok, test.want)
		}
	}
}

func TestGoals(t *testing.T) {
	for _, test := range []struct {
		limit limit
		e     estimate
		want  bool
	}{
		{atLeast(1), estimate{9, 1, 9}, true},
		{atLeast(1), estimate{9, 0.9, 9}, false},
		{atMost(1), estimate{0, 0, 1}, true},
		{atMost(1), estimate{0, 0, 1.1}, false},
		{atMost(1), exactly(math.NaN()), false},
	} {
		if got := test.limit.metBy(test.e); got != test.want {
			t.Errorf("limit %+v, estimate %+v: got %t, want %t", test.limit, test.e, got, test.want)
		}
	}
}

// TestWhyMissed checks the reason for a missed goal.
func TestWhyMissed(t *testing.T) {
	for _, test := range []struct {
		e    estimate
		want string
	}{
		{estimate{2, 1, 3}, ""},
		{estimate{2, 0.9, 3}, "The median meets the goal, but a part of the interval does not."},
		{estimate{0.9, 0.8, 1.1}, "the reason"},
	} {
		g := goal{limit: atLeast(1), format: number, why: "the reason", measure: func(results) (estimate, bool) { return test.e, true }}
		if got := newGoalRow(nil, g).Why; got != test.want {
			t.Errorf("estimate %+v: got %q, want %q", test.e, got, test.want)
		}
	}
}

// TestComparisons checks that a run with a base prints all comparisons, and no other figures.
func TestComparisons(t *testing.T) {
	records := results{{Experiment: "machine", Text: map[string]string{"base": "main"}}}
	for subject, cost := range map[string]float64{"ours": 100, "base": 98} {
		values := map[string]float64{
			"children": 10, "seconds": cost, "cpu_subject_seconds": cost, "cpu_apiserver_seconds": cost,
			"peak_subject_bytes": cost, "requests": cost, "peak_bytes": cost, "lateness_p50_seconds": cost,
			"lateness_p99_seconds": cost, "changes": 10,
		}
		for round := range 3 {
			records = append(records, Record{"convergence", compared[0].String(), subject, round, values, nil},
				Record{"large", "start", subject, round, values, nil},
				Record{"flips", "25/s", subject, round, values, nil})
		}
	}
	var printed strings.Builder
	err := printFigures(&printed, records)
	if n := strings.Count(printed.String(), " yes\n"); err != nil || n != len(comparisons()) ||
		strings.Contains(printed.String(), "at most") {
		t.Errorf("got error %v and %d comparisons, want %d comparisons and no other figure in\n%s",
			err, n, len(comparisons()), printed.String())
	}
	for want, e := range map[string]estimate{"yes": {1, 0.97, 2}, "unclear": {1, 0.9, 1.1}, "no": {0.9, 0.8, 0.96}} {
		g := goal{limit: noWorse, format: number, measure: func(results) (estimate, bool) { return e, true }}
		if got := newGoalRow(nil, g).Met; got != want {
			t.Errorf("estimate %+v: got %q, want %q", e, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{withSizes("at 10000x10 and 500x1000"), "at 10000 × 10 and 500 × 1000"},
		{number(0), "0"},
		{number(0.85), "0.85"},
		{number(1.0239), "1.02"},
		{number(0.0012345), "0.00123"},
		{number(12345.6), "12346"},
		{number(math.Inf(1)), "+Inf"},
		{duration(0), "0 s"},
		{duration(20e-6), "20 µs"},
		{duration(0.025), "25 ms"},
		{duration(2.5), "2.5 s"},
		{byteSize(100), "100 bytes"},
		{byteSize(1536), "1.5 KiB"},
		{byteSize(256 << 20), "256 MiB"},
		{estimate{1, 0.5, 2}.write(number), "1 (0.5 to 2)"},
		{exactly(3).write(number), "3"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

// TestPublish publishes two records of races and two of the experiment big.
func TestPublish(t *testing.T) {
	folder := t.TempDir()
	machine := Record{Experiment: "machine", Values: map[string]float64{"cores": 2, "memory_bytes": 1}, Text: map[string]string{"cpu": "Z80"}}
	records := append(results{machine}, raced("10000x10", map[string]float64{"ours": 1, minimalClient: 0.5})...)
	writeRecords(t, folder, resultsFile, append(records, raced("1000x10", map[string]float64{"ours": 1, creator: 2})...))
	writeRecords(t, folder, bigFile, results{
		machine,
		{Experiment: "big", Case: "10000x10", Values: map[string]float64{"apiserver_memory_bytes": 5 << 30}},
		{Experiment: "big", Case: "30000x10", Values: map[string]float64{"apiserver_memory_bytes": 15 << 30}},
	})
	pages, err := publish(folder)
	if err != nil {
		t.Fatal(err)
	}
	for path, wanted := range map[string][]string{
		"performance.md": {
			"the operator creates 1 Switches per second.",
			"It meets 1 of its 2 measured goals.",
			"creator, 1000 × 10 | at least 0.65 | 2 | yes |",
			"minimal client, 10000 × 10 | at least 0.9 | 0.5 | no |",
			"\n| time to start, 10000 × 10 | at most 6 s | not measured | – |",
			"\nWhy goals are missed:\n\n- *Switches per second, operator / minimal client, 10000 × 10.* The operator uses",
			"bar [1, 0, 0.5, 0]",
			"bar [5.00, 15.00]",
		},
		"performance/details.md": {"\n| minimal client | 2 | 0.5 |", "| processor | Z80, 2 cores"},
		"performance/big.md":     {"\n| 300,000 | ", "| memory of kube-apiserver | 51200 MiB |"},
	} {
		for _, want := range wanted {
			if page := string(pages[path]); !strings.Contains(page, want) {
				t.Errorf("%s does not contain %q:\n%s", path, want, page)
			}
		}
	}
}

func writeRecords(t *testing.T, folder, name string, records results) {
	t.Helper()
	var data bytes.Buffer
	for _, record := range records {
		if err := json.NewEncoder(&data).Encode(record); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, name), data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPublished checks that the committed pages were made from the committed records.
func TestPublished(t *testing.T) {
	const docs = "../../docs"
	pages, err := publish(filepath.Join(docs, "performance"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range pages {
		got, err := os.ReadFile(filepath.Join(docs, path))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("docs/%s is outdated: run bin/bench/bench report docs/performance docs (-want +got):\n%s", path, diff)
		}
	}
}

// TestSummary checks the size of the page for newcomers.
func TestSummary(t *testing.T) {
	page, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	summary := strings.Split(string(page), "\n\n")[2]
	if n := len(regexp.MustCompile(`\.(\s|$)`).FindAllString(summary, -1)); n != 5 {
		t.Errorf("the page begins with %d sentences, want 5:\n%s", n, summary)
	}
	if n := len(goals()); n > 20 {
		t.Errorf("the table has %d rows, want at most 20", n)
	}
}

func TestPartialRuns(t *testing.T) {
	for _, machine := range []Record{
		{Experiment: "machine", Values: map[string]float64{"quick": 1}},
		{Experiment: "machine", Text: map[string]string{"base": "main"}},
	} {
		folder := t.TempDir()
		writeRecords(t, folder, resultsFile, results{machine})
		err := report(t.Context(), []string{"report", folder, t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), "run make bench") {
			t.Errorf("%v: got error %v, want an error that contains run make bench", machine, err)
		}
	}
}

// TestPageDescribesSubjects checks that each subject in the tables has a description.
func TestPageDescribesSubjects(t *testing.T) {
	page, err := pageTemplates.ReadFile("details.md.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range order {
		if name != "base" && !strings.Contains(string(page), fmt.Sprintf("| %s | ", name)) {
			t.Errorf("the page does not describe %q", name)
		}
	}
}
