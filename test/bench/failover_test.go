// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/test/internal/invariants"
)

func TestRecordRounds(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b := &bench{ours: &revision{name: "ours"}, start: time.Now(), current: "failover", file: file}
	f := &replicas{bench: b, size: size{500, 1}, failures: []failure{
		{crash, after(10)}, {"SIGTERM", after(20)}, {crash, after(30)},
	}}
	var flips []flip
	for _, f := range []struct{ due, heard float64 }{{5, 9}, {9, 19}, {10, 12}, {11, 12}, {15, 25}, {20, 23}, {31, 35}} {
		flips = append(flips, flip{invariants.Flip{Due: after(f.due)}, after(f.heard)})
	}
	if err := f.recordRounds(flips); err != nil {
		t.Fatal(err)
	}
	latest := map[string]float64{}
	for _, kase := range []string{"500x1, SIGTERM", "500x1, crash"} {
		for _, round := range b.records.byRound("failover", kase, "ours") {
			latest[kase] += round[0]["lateness_max_seconds"]
		}
	}
	if diff := cmp.Diff(map[string]float64{"500x1, SIGTERM": 10, "500x1, crash": 10 + 4}, latest); diff != "" {
		t.Errorf("sum of the maximum lateness of all rounds (-want +got):\n%s", diff)
	}
	if err := f.recordRounds(flips[:6]); err == nil {
		t.Error("no error although no flip followed the last crash")
	}
}
