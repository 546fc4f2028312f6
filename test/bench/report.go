// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"text/template"
)

// resultsFile is the name of the file with the records of a run.
const resultsFile = "results.jsonl"

// report publishes the records in one folder in another: performance.md and, in the folder performance, the records and
// the plot. Nothing that it writes depends on anything but the records.
func report(_ context.Context, args []string) error {
	if len(args) != 3 {
		return errors.New("say where the results are and where the documentation is: bench report bin/bench docs")
	}
	data, err := os.ReadFile(filepath.Join(args[1], resultsFile))
	if err != nil {
		return err
	}
	pages, err := publish(data)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(args[2], "performance"), 0o755); err != nil {
		return err
	}
	for name, page := range pages {
		if err := os.WriteFile(filepath.Join(args[2], name), page, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// publish makes the files of the documentation out of the records.
func publish(data []byte) (map[string][]byte, error) {
	records, err := readRecords(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	if machine, _ := results(records).sum("machine", "", ""); machine.Values["quick"] != 0 {
		return nil, errors.New("a quick run is not worth publishing")
	}
	pages := map[string][]byte{filepath.Join("performance", resultsFile): data}
	if pages["performance.md"], err = renderPage(records); err != nil {
		return nil, err
	}
	for _, format := range []string{"svg", "png"} {
		if pages[filepath.Join("performance", "convergence."+format)], err = plotConvergence(records, format); err != nil {
			return nil, fmt.Errorf("plot the convergence: %w", err)
		}
	}
	return pages, nil
}

//go:embed performance.md.tmpl
var pageTemplate string

// A page is what the template shows.
type page struct {
	Machine     Record
	Groups      []tableOfGoals
	Races       []tableOfContenders
	Concurrency []tableOfContenders
	Missed      []string // figures, each once

	records results
}

type tableOfGoals struct {
	Title string
	Rows  []goalRow
}

type goalRow struct {
	Figure, What, Goal, Measured, Met string
}

func renderPage(records results) ([]byte, error) {
	p := &page{
		Groups: tablesOfGoals(records), Races: tablesOfContenders(records, "convergence"),
		Concurrency: tablesOfContenders(records, "concurrency"), records: records,
	}
	p.Machine, _ = records.sum("machine", "", "")
	for _, group := range p.Groups {
		for _, row := range group.Rows {
			if row.Met == "no" && !slices.Contains(p.Missed, row.Figure) {
				p.Missed = append(p.Missed, row.Figure)
			}
		}
	}
	t := template.New("performance.md")
	t.Funcs(template.FuncMap{
		"duration": duration, "bytes": byteSize, "significant": significant, "percentage": percentage,
		// limits is what the template says of a figure that was missed.
		"limits": func(figure string) (string, error) {
			var text strings.Builder
			if t.Lookup(figure) == nil {
				return "What limits it has yet to be found.", nil
			}
			err := t.ExecuteTemplate(&text, figure, p)
			return text.String(), err
		},
	})
	if _, err := t.Parse(pageTemplate); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err := t.Execute(&out, p)
	return out.Bytes(), err
}

// Rate is how many times as many children a contender makes in the same time as another.
func (p *page) Rate(size, contender, other string) string {
	e, ok := rateRatio("convergence", size, contender, other, "children")(p.records)
	if !ok {
		return "an unknown number of"
	}
	return e.write(significant)
}

// Each is what a piece of work takes a contender of something, in seconds.
func (p *page) Each(experiment, kase, contender, cost, work string) string {
	rounds := p.records.byRound(experiment, kase, contender)
	if len(rounds) == 0 {
		return "an unknown time"
	}
	return duration(overall(rounds, 0, cost, work))
}

// Value is one of the operator that was recorded of the whole.
func (p *page) Value(experiment, kase, key string) float64 {
	record, _ := p.records.sum(experiment, kase, "ours")
	return record.Values[key]
}

// Measured is what a table says of a figure.
func (p *page) Measured(what string) (string, error) {
	for _, group := range p.Groups {
		for _, row := range group.Rows {
			if row.What == what {
				return row.Measured, nil
			}
		}
	}
	return "", fmt.Errorf("no figure is %q", what)
}

// Busy is the part of all cores that the processes of the operator's world took on average.
func (p *page) Busy(experiment, kase string) float64 {
	record, _ := p.records.sum(experiment, kase, "ours")
	used := 0.
	for name, seconds := range record.Values {
		if strings.HasPrefix(name, "cpu_") {
			used += seconds
		}
	}
	return used / record.Values["run_seconds"] / p.Machine.Values["cores"]
}

// unknown is what stands where nothing was measured.
const unknown = "–"

func tablesOfGoals(records results) (tables []tableOfGoals) {
	for _, group := range groups {
		table := tableOfGoals{Title: group.title}
		for _, g := range group.goals {
			table.Rows = append(table.Rows, newGoalRow(records, g))
		}
		tables = append(tables, table)
	}
	return tables
}

func newGoalRow(records results, g goal) goalRow {
	row := goalRow{Figure: g.figure, What: withSizes(g.what), Goal: g.asked(), Measured: "not measured", Met: unknown}
	if e, ok := g.measure(records); ok {
		row.Measured, row.Met = e.write(g.write), "no"
		if g.met(e) {
			row.Met = "yes"
		}
	}
	return row
}

// A tableOfContenders compares all who did the same.
type tableOfContenders struct {
	Case string
	Rows []contenderRow
}

type contenderRow struct {
	Name, Share, Rate, Times, Requests, CPU, EtcdCPU, APIServerCPU, ConverterCPU, Peak string
}

func tablesOfContenders(records results, experiment string) (tables []tableOfContenders) {
	contenders := map[string][]string{}
	for _, record := range records {
		if record.Experiment == experiment && record.Round == 0 {
			contenders[record.Case] = append(contenders[record.Case], record.Contender)
		}
	}
	cases := slices.SortedFunc(maps.Keys(contenders), func(a, b string) int {
		return cmp.Or(cmp.Compare(parseSize(a).total(), parseSize(b).total()), cmp.Compare(parseSize(b).machines, parseSize(a).machines))
	})
	for _, kase := range cases {
		table := tableOfContenders{Case: withSizes(kase)}
		slices.SortFunc(contenders[kase], func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
		for _, contender := range contenders[kase] {
			if rounds := records.byRound(experiment, kase, contender); len(rounds) > 0 {
				table.Rows = append(table.Rows, newContenderRow(records, experiment, kase, contender, rounds))
			}
		}
		tables = append(tables, table)
	}
	return tables
}

// order is how tables list the contenders.
var order = []string{"ours", "base", "bare+informer", "bare", "replicaset", "sample", "tutorial"}

// rank sorts contenders, and those that differ in their concurrency by that.
func rank(contender string) int {
	name, number, _ := strings.Cut(contender, " ")
	concurrency, _ := strconv.Atoi(number)
	return slices.Index(order, name)*1000 + concurrency
}

func newContenderRow(records results, experiment, kase, contender string, rounds [][]Record) contenderRow {
	sum, _ := records.sum(experiment, kase, contender)
	size := parseSize(kase)
	per := func(cost string) string { return significant(1000 * overall(rounds, 0, cost, "children")) }
	row := contenderRow{
		Name:  contender,
		Share: significant(math.Floor(100*sum.Values["children"]/float64(size.total()))) + " %",
		Rate: bootstrap(rounds, func(drawn [][]Record) float64 {
			return 1 / overall(drawn, 0, "seconds", "children")
		}).write(significant),
		Times:        unknown,
		Requests:     significant(requestsOf(sum) / (sum.Values["children"] / float64(size.switches))),
		CPU:          per("cpu_contender_seconds"),
		EtcdCPU:      per("cpu_etcd_seconds"),
		APIServerCPU: per("cpu_kube-apiserver_seconds"),
		ConverterCPU: per("cpu_converter_seconds"),
		Peak:         byteSize(sum.Values["peak_contender_bytes"]),
	}
	if e, ok := rateRatio(experiment, kase, "ours", contender, "children")(records); ok && contender != "ours" {
		row.Times = e.write(significant)
	}
	return row
}

// requestsOf is how many requests a contender has made, all told. For one that does not count them itself, the API server
// has counted what it wrote.
func requestsOf(sum Record) float64 {
	if requests, ok := sum.Values["requests"]; ok {
		return requests
	}
	written := 0.
	for name, n := range sum.Values {
		verb, _, _ := strings.Cut(strings.TrimPrefix(name, "calls "), " ")
		if slices.Contains([]string{"POST", "PUT", "PATCH", "DELETE"}, verb) {
			written += n
		}
	}
	return written
}

// printFigures prints the figures that the records have.
func printFigures(w io.Writer, records results) error {
	var rows []goalRow
	for _, group := range tablesOfGoals(records) {
		rows = append(rows, group.Rows...)
	}
	for _, g := range comparisons {
		rows = append(rows, newGoalRow(records, g))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if machine, _ := records.sum("machine", "", ""); machine.Values["quick"] != 0 {
		fmt.Fprintln(table, "A quick run: there were fewer Machines than some figures say.")
	}
	rows = slices.DeleteFunc(rows, func(row goalRow) bool { return row.Met == unknown })
	if len(rows) > 0 {
		fmt.Fprintln(table, "\tfigure\tgoal\tmeasured\tmet")
	}
	for _, row := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Figure, row.What, row.Goal, row.Measured, row.Met)
	}
	for _, race := range append(tablesOfContenders(records, "concurrency"), tablesOfContenders(records, "convergence")...) {
		fmt.Fprintf(table, "\n%s\tchildren per second\tours is times as fast\trequests per parent\tpeak memory\n", race.Case)
		for _, row := range race.Rows {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Name, row.Rate, row.Times, row.Requests, row.Peak)
		}
	}
	return table.Flush()
}

var sizePattern = regexp.MustCompile(`\b\d+x\d+\b`)

// withSizes writes the sizes in a text as people do.
func withSizes(text string) string {
	return sizePattern.ReplaceAllStringFunc(text, func(match string) string {
		s := parseSize(match)
		return grouped(s.machines) + " × " + grouped(s.switches)
	})
}

// grouped writes a number below a million with a comma.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// write writes an estimate with its interval, if it has one.
func (e estimate) write(number func(float64) string) string {
	value, low, high := number(e.value), number(e.low), number(e.high)
	if low == high {
		return value
	}
	return fmt.Sprintf("%s (%s to %s)", value, low, high)
}

// significant writes a number with three digits, all of those before the point, or as few as it has.
func significant(value float64) string {
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(value)))))
	rounded, exact := strconv.FormatFloat(value, 'f', min(digits, 9), 64), strconv.FormatFloat(value, 'f', -1, 64)
	if len(exact) < len(rounded) {
		return exact
	}
	return rounded
}

// duration writes a time in the unit that fits.
func duration(value float64) string {
	switch {
	case value == 0 || value >= 1:
		return significant(value) + " s"
	case value >= 1e-3:
		return significant(round(value*1e3)) + " ms"
	}
	return significant(round(value*1e6)) + " µs"
}

// byteSize writes a size in the unit that fits.
func byteSize(value float64) string {
	switch {
	case value >= 1<<20:
		return significant(value/(1<<20)) + " MiB"
	case value >= 1<<10:
		return significant(value/(1<<10)) + " KiB"
	}
	return significant(value) + " bytes"
}

// percentage writes a share.
func percentage(value float64) string { return significant(round(value*100)) + " %" }

// round removes what floating-point arithmetic adds.
func round(value float64) float64 { return math.Round(value*1e9) / 1e9 }
