// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"text/tabwriter"
	"text/template"
)

// bigFile is the name of the file with the records of the experiment big in the documentation.
const bigFile = "big.jsonl"

// report writes the documentation. Its command line is: bench report FOLDER DOCS. It copies the records in FOLDER to
// DOCS/performance, and writes the pages, which depend only on the records there.
func report(_ context.Context, args []string) error {
	if len(args) != 3 {
		return errors.New("usage: bench report FOLDER DOCS, for example: bench report bin/bench docs")
	}
	data, err := os.ReadFile(filepath.Join(args[1], resultsFile))
	if err != nil {
		return err
	}
	records, err := readRecords(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read the records: %w", err)
	}
	if records.partial() {
		return errors.New("the records are from make bench-quick or from a comparison: run make bench")
	}
	name := resultsFile
	if slices.ContainsFunc(records, func(r Record) bool { return r.Experiment == "big" }) {
		name = bigFile
	}
	if err := os.WriteFile(filepath.Join(args[2], "performance", name), data, 0o644); err != nil {
		return err
	}
	pages, err := publish(filepath.Join(args[2], "performance"))
	for name, page := range pages {
		err = errors.Join(err, os.WriteFile(filepath.Join(args[2], name), page, 0o644))
	}
	return err
}

func (r results) partial() bool {
	machine := r.machine()
	return machine.Values["quick"] != 0 || machine.Text["base"] != ""
}

//go:embed *.md.tmpl
var pageTemplates embed.FS

// templates are the names of the pages in the documentation, and of their templates.
var templates = map[string]string{
	"performance.md":         "performance.md.tmpl",
	"performance/details.md": "details.md.tmpl",
	"performance/big.md":     "big.md.tmpl",
}

// A page is the data of the templates.
type page struct {
	Machine, BigMachine Record
	Rows                []goalRow
	Met, Missed         int
	Why                 []string // missed goals with reasons
	Races               []raceTable
	Sizes               []Record // of the experiment big

	records results
}

type goalRow struct {
	What, Goal, Measured, Met string
	Why                       string // why the goal is missed; may be empty
}

// publish returns the pages for the records in a folder, by their paths.
func publish(folder string) (map[string][]byte, error) {
	var all [2]results
	for i, name := range []string{resultsFile, bigFile} {
		file, err := os.Open(filepath.Join(folder, name))
		if name == bigFile && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if all[i], err = readRecords(file); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	p := newPage(all[0], all[1])
	functions := template.FuncMap{
		"bytes": byteSize, "sizes": withSizes, "duration": duration, "gib": gib, "switches": switchesOf, "count": count,
	}
	pages := map[string][]byte{}
	for path, name := range templates {
		if name == "big.md.tmpl" && len(p.Sizes) == 0 {
			continue
		}
		t, err := template.New(name).Funcs(functions).ParseFS(pageTemplates, name, "machine.md.tmpl")
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		if err := t.Execute(&out, p); err != nil {
			return nil, err
		}
		pages[path] = out.Bytes()
	}
	return pages, nil
}

func newPage(records, big results) *page {
	p := &page{
		Machine: records.machine(), BigMachine: big.machine(), Races: newRaceTables(records), records: records,
	}
	for _, goal := range goals() {
		row := newGoalRow(records, goal)
		p.Rows = append(p.Rows, row)
		switch row.Met {
		case "yes":
			p.Met++
		case "no":
			p.Missed++
			if row.Why != "" {
				p.Why = append(p.Why, fmt.Sprintf("*%s.* %s", row.What, row.Why))
			}
		}
	}
	for _, record := range big {
		if record.Experiment == "big" {
			p.Sizes = append(p.Sizes, record)
		}
	}
	return p
}

// Measured returns the number of measured goals.
func (p *page) Measured() int { return p.Met + p.Missed }

// Million returns a value of the experiment big for a million Switches. It continues the line through the values of the
// two largest sizes.
func (p *page) Million(key string) float64 {
	n := len(p.Sizes)
	if n < 2 {
		return 0
	}
	last, before := p.Sizes[n-1], p.Sizes[n-2]
	x, y := float64(parseSize(last.Case).total()), last.Values[key]
	slope := (y - before.Values[key]) / (x - float64(parseSize(before.Case).total()))
	return y + slope*(1e6-x)
}

// switchesOf returns the number of Switches of a record of the experiment big.
func switchesOf(r Record) int { return parseSize(r.Case).total() }

// count formats a number from 1,000 to 999,999 with a separator.
func count(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }

// gib returns a number of bytes in GiB, with two digits after the decimal point.
func gib(value float64) string { return fmt.Sprintf("%.2f", value/(1<<30)) }

// Value returns the measured value of a goal, without its interval.
func (p *page) Value(what string) (string, error) {
	for _, goal := range goals() {
		if e, ok := goal.measure(p.records); goal.what == what && ok {
			return goal.format(e.value), nil
		} else if goal.what == what {
			return notMeasured, nil
		}
	}
	return "", fmt.Errorf("unknown goal %q", what)
}

// Rate returns the number of Switches that a subject creates per second.
func (p *page) Rate(kase, subject string) string {
	e, ok := bootstrap(rates(p.records, kase, subject))
	if !ok {
		return "0"
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
	e, ok := g.measure(records)
	if !ok {
		return row
	}
	row.Measured = e.write(g.format)
	switch {
	case g.limit.metBy(e):
		row.Met = "yes"
	case g.limit == noWorse && e.high >= noWorse.value:
		row.Met = "unclear" // the limit is in the interval
	case g.limit.metBy(exactly(e.value)):
		row.Met, row.Why = "no", "The median meets the goal, but a part of the interval does not."
	default:
		row.Met, row.Why = "no", g.why
	}
	return row
}

// A raceTable compares all subjects of a race.
type raceTable struct {
	Case string
	Rows []raceRow
}

type raceRow struct {
	Name, Rate, Ratio, CPU, APIServer, Peak string
}

// order is the order of subjects in tables.
var order = []string{"ours", "base", minimalClient, creator, replicaSetAlgorithm}

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
	rounds := records.byRound("convergence", kase, subject)
	cpu := func(of string) string { return number(1000 * costOf(rounds, 0, "cpu_"+of+"_seconds", "children")) }
	row := raceRow{
		Name: subject, Rate: unknown, Ratio: unknown, CPU: cpu("subject"), APIServer: cpu("apiserver"), Peak: unknown,
	}
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
	figures := goals()
	if machine.Text["base"] != "" {
		figures = comparisons()
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if machine.Values["quick"] != 0 {
		fmt.Fprintln(table, "This was a quick run: some sizes are smaller than the names of the figures say.")
	}
	fmt.Fprintln(table, "figure\tgoal\tmeasured\tmet")
	for _, g := range figures {
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

// round removes rounding errors of floating-point arithmetic.
func round(value float64) float64 { return math.Round(value*1e9) / 1e9 }
