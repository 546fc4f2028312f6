// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"text/tabwriter"
	"text/template"
)

// report writes the documentation from the records in a folder. Its command line is: bench report FOLDER DOCS. The
// files performance.md and performance/results.jsonl depend only on the records.
func report(_ context.Context, args []string) error {
	if len(args) != 3 {
		return errors.New("usage: bench report FOLDER DOCS, for example: bench report bin/bench docs")
	}
	data, err := os.ReadFile(filepath.Join(args[1], resultsFile))
	if err != nil {
		return err
	}
	page, err := publish(data)
	if err != nil {
		return err
	}
	records := filepath.Join(args[2], "performance", resultsFile)
	if err := os.MkdirAll(filepath.Dir(records), 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(records, data, 0o644), os.WriteFile(filepath.Join(args[2], "performance.md"), page, 0o644))
}

//go:embed performance.md.tmpl
var pageTemplate string

// A page is the data of the template.
type page struct {
	Machine     Record
	Groups      []goalTable
	Races       []raceTable
	Met, Missed int

	records results
}

type goalTable struct {
	Title  string
	Rows   []goalRow
	Missed bool // whether at least one goal is missed
	Why    string
}

type goalRow struct {
	What, Goal, Measured, Met string
}

// publish returns the page for the records in data.
func publish(data []byte) ([]byte, error) {
	records, err := readRecords(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	p := &page{Races: newRaceTables(records), records: records}
	p.Machine = records.machine()
	if p.Machine.Values["quick"] != 0 || p.Machine.Text["base"] != "" {
		return nil, errors.New("the records are from make bench-quick or from a comparison: run make bench")
	}
	for _, g := range groups() {
		table := goalTable{Title: g.title, Why: g.why}
		for _, goal := range g.goals {
			row := newGoalRow(records, goal)
			table.Rows = append(table.Rows, row)
			switch row.Met {
			case "yes":
				p.Met++
			case "no":
				p.Missed++
				table.Missed = true
			}
		}
		p.Groups = append(p.Groups, table)
	}
	functions := template.FuncMap{"bytes": byteSize, "sizes": withSizes}
	t, err := template.New("performance.md").Funcs(functions).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, p)
	return out.Bytes(), err
}

// Measured returns the number of measured goals.
func (p *page) Measured() int { return p.Met + p.Missed }

// Value returns the measured value of a goal, without its interval.
func (p *page) Value(what string) (string, error) {
	for _, g := range groups() {
		for _, goal := range g.goals {
			if e, ok := goal.measure(p.records); goal.what == what && ok {
				return goal.format(e.value), nil
			} else if goal.what == what {
				return notMeasured, nil
			}
		}
	}
	return "", fmt.Errorf("unknown goal %q", what)
}

// Rate returns the number of Switches that the operator creates per second.
func (p *page) Rate(kase string) string {
	e, ok := bootstrap(rates(p.records, kase, "ours"))
	if !ok {
		return notMeasured
	}
	return number(e.value)
}

// rates returns the children per second in each turn of a race.
func rates(records results, kase, subject string) (all []float64) {
	for _, round := range records.byRound("convergence", kase, subject) {
		if values := round[0]; values["children"] > 0 {
			all = append(all, values["children"]/values["seconds"])
		}
	}
	return all
}

const notMeasured, unknown = "not measured", "–"

func newGoalRow(records results, g goal) goalRow {
	row := goalRow{What: withSizes(g.what), Goal: g.limit.write(g.format), Measured: notMeasured, Met: unknown}
	if e, ok := g.measure(records); ok {
		row.Measured, row.Met = e.write(g.format), "no"
		if g.limit.metBy(e) {
			row.Met = "yes"
		} else if g.limit == noWorse && e.high >= noWorse.value {
			row.Met = "unclear" // the limit is in the interval
		}
	}
	return row
}

// A raceTable compares all subjects of a race.
type raceTable struct {
	Case string
	Rows []raceRow
}

type raceRow struct {
	Name, Rate, Ratio, CPU, Peak string
}

// order is the order of subjects in tables.
var order = []string{"ours", "base", "minimal client", "replicaset"}

func newRaceTables(records results) (tables []raceTable) {
	for _, sum := range records {
		if sum.Experiment != "convergence" || sum.Round != 0 || sum.Subject != "ours" {
			continue
		}
		table := raceTable{Case: sum.Case}
		for _, subject := range order {
			if len(records.byRound("convergence", sum.Case, subject)) > 0 {
				table.Rows = append(table.Rows, newRaceRow(records, sum.Case, subject))
			}
		}
		tables = append(tables, table)
	}
	slices.SortStableFunc(tables, func(a, b raceTable) int {
		return parseSize(a.Case).total() - parseSize(b.Case).total()
	})
	return tables
}

func newRaceRow(records results, kase, subject string) raceRow {
	cpu := costOf(records.byRound("convergence", kase, subject), 0, "cpu_subject_seconds", "children")
	row := raceRow{Name: subject, Rate: unknown, Ratio: unknown, CPU: number(1000 * cpu), Peak: unknown}
	if all := records.round(0, "convergence", kase, subject); all != nil {
		row.Peak = byteSize(all[0]["peak_subject_bytes"])
	}
	if e, ok := bootstrap(rates(records, kase, subject)); ok {
		row.Rate = e.write(number)
	}
	if e, ok := rate(kase, subject)(records); ok && subject != "ours" {
		row.Ratio = e.write(number)
	}
	return row
}

// printFigures prints all figures that have records. With a base, it prints only comparisons.
func printFigures(w io.Writer, records results) error {
	machine := records.machine()
	var goals []goal
	if machine.Text["base"] != "" {
		goals = comparisons()
	} else {
		for _, g := range groups() {
			goals = append(goals, g.goals...)
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if machine.Values["quick"] != 0 {
		fmt.Fprintln(table, "This was a quick run: some sizes are smaller than the names of the figures say.")
	}
	fmt.Fprintln(table, "figure\tgoal\tmeasured\tmet")
	for _, g := range goals {
		if row := newGoalRow(records, g); row.Met != unknown {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", row.What, row.Goal, row.Measured, row.Met)
		}
	}
	for _, race := range newRaceTables(records) {
		fmt.Fprintf(table, "\n%s\tchildren per second\tours / this\tpeak memory\n", withSizes(race.Case))
		for _, row := range race.Rows {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", row.Name, row.Rate, row.Ratio, row.Peak)
		}
	}
	return table.Flush()
}

var sizePattern = regexp.MustCompile(`\b(\d+)x(\d+)\b`)

// withSizes replaces the sizes in a text by the format for readers, such as 1000 × 10.
func withSizes(text string) string { return sizePattern.ReplaceAllString(text, "$1 × $2") }

func (l limit) write(format func(float64) string) string {
	switch {
	case l.least:
		return "at least " + format(l.value)
	case l.value == 0:
		return "none"
	}
	return "at most " + format(l.value)
}

// write formats an estimate with its interval, if the interval is not empty.
func (e estimate) write(format func(float64) string) string {
	value, low, high := format(e.value), format(e.low), format(e.high)
	if low == high {
		return value
	}
	return fmt.Sprintf("%s (%s to %s)", value, low, high)
}

// number formats a number with three significant digits, and with all digits before the decimal point.
func number(value float64) string {
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(value)))))
	rounded := strconv.FormatFloat(value, 'f', min(digits, 9), 64)
	if exact := strconv.FormatFloat(value, 'f', -1, 64); len(exact) < len(rounded) {
		return exact
	}
	return rounded
}

// duration formats seconds with a unit.
func duration(value float64) string {
	switch {
	case value == 0 || value >= 1:
		return number(value) + " s"
	case value >= 1e-3:
		return number(round(value*1e3)) + " ms"
	}
	return number(round(value*1e6)) + " µs"
}

// byteSize formats a number of bytes with a unit.
func byteSize(value float64) string {
	switch {
	case value >= 1<<20:
		return number(value/(1<<20)) + " MiB"
	case value >= 1<<10:
		return number(value/(1<<10)) + " KiB"
	}
	return number(value) + " bytes"
}

func percentage(value float64) string { return number(round(value*100)) + " %" }

// round removes rounding errors of floating-point arithmetic.
func round(value float64) float64 { return math.Round(value*1e9) / 1e9 }
