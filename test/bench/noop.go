// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// noOp measures what a reconcile costs that finds nothing to do, with the Machine controller's own benchmarks: a record for
// each of them and round, of which the case is the benchmark.
func noOp(ctx context.Context, b *bench) error {
	rounds, benchtime := 5, "500ms"
	if b.quick {
		rounds, benchtime = 3, "200ms"
	}
	revisions := b.revisions()
	for _, rev := range revisions {
		build := exec.CommandContext(ctx, "go", "test", "-c", "-o", rev.benchmarks(), "./internal/controller/machine")
		build.Dir = rev.dir
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("compile the benchmarks in %s: %w\n%s", rev.dir, err, out)
		}
	}
	for round := range rounds {
		for _, rev := range revisions {
			b.say("round %d: %s", round+1, rev.name)
			out, err := output(ctx, rev.benchmarks(), "-test.run=^$", "-test.bench=^BenchmarkNoOpReconcile", "-test.benchmem", "-test.benchtime="+benchtime)
			if err != nil {
				return err
			}
			for _, r := range parseBenchmarks(out) {
				r.Contender, r.Round = rev.name, round+1
				if err := b.record(r); err != nil {
					return err
				}
			}
		}
		slices.Reverse(revisions)
	}
	return nil
}

// benchmarks is the program with the Machine controller's benchmarks.
func (r *revision) benchmarks() string {
	return filepath.Join(filepath.Dir(r.manager), "machine-"+r.name+".test")
}

// benchmarkLine is what Go says of a benchmark: its name, on how many processors, how often, and what it cost.
var benchmarkLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// parseBenchmarks reads the output of Go's benchmarks.
func parseBenchmarks(out string) (records []Record) {
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		match := benchmarkLine.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		record := Record{Case: match[1], Values: map[string]float64{}}
		fields := strings.Fields(match[2])
		for i := 0; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				continue
			}
			switch unit := fields[i+1]; unit {
			case "ns/op":
				record.Values["seconds"] = value / 1e9
			case "B/op":
				record.Values["bytes"] = value
			case "allocs/op":
				record.Values["allocations"] = value
			default:
				record.Values[unit] = value
			}
		}
		records = append(records, record)
	}
	return records
}
