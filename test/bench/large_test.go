// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/api/useless/v1beta1"
)

// TestTurns checks that consecutive requests are for different Machines.
func TestTurns(t *testing.T) {
	turns := &turns{size: size{3, 2}, order: []int{2, 0, 1}}
	var got []string
	for range 3 {
		got = append(got, turns.next())
	}
	want := []string{"machine-00000", "machine-00001", "machine-00002"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Machines (-want +got):\n%s", diff)
	}
}

func TestHearNotices(t *testing.T) {
	turns, pending := &turns{}, map[string]time.Time{"a": time.Now().Add(-time.Minute)}
	for i, step := range []struct {
		name                 string
		position             v1beta1.Position
		generation, observed int64
		waits, pending       int
	}{
		{"other", v1beta1.PositionUp, 1, 1, 0, 1},
		{"a", v1beta1.PositionUp, 2, 1, 0, 1}, // the user's change
		{"a", v1beta1.PositionUp, 2, 2, 1, 1}, // the operator has noticed it
		{"a", v1beta1.PositionUp, 2, 2, 1, 1}, // another change of the Switch
		{"a", v1beta1.PositionDown, 3, 2, 1, 0},
	} {
		sw := &v1beta1.Switch{Spec: v1beta1.SwitchSpec{Position: step.position}}
		sw.Name, sw.Generation, sw.Status.ObservedGeneration = step.name, step.generation, step.observed
		turns.hear(sw, pending)
		if len(turns.waits) != step.waits || len(pending) != step.pending {
			t.Errorf("event %d: got %d waits and %d pending Switches, want %d and %d",
				i, len(turns.waits), len(pending), step.waits, step.pending)
		}
	}
	if wait := turns.waits[0]; wait < 60 || wait > 90 {
		t.Errorf("got a wait of %.0f s, want 60 s", wait)
	}
}

func TestExperiments(t *testing.T) {
	for _, test := range []struct {
		only      string
		comparing bool
		want      string
	}{
		{"", false, "flips convergence large failover schedules versions"},
		{"", true, "flips convergence large"},
		{"big", false, "big"},
		{"big", true, ""},
		{"large", true, "large"},
		{"unknown", false, ""},
	} {
		var names []string
		for _, e := range experiments(test.only, test.comparing) {
			names = append(names, e.name)
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("-only %q, comparing %t: got %q, want %q", test.only, test.comparing, got, test.want)
		}
	}
}

func TestPrintSizes(t *testing.T) {
	records := results{
		{Experiment: "large", Case: "start", Values: map[string]float64{"seconds": 9}},
		{Experiment: "big", Case: "1000x10", Values: map[string]float64{"seconds": 2, "peak_bytes": 1 << 20}},
	}
	var printed strings.Builder
	if err := printSizes(&printed, records); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(printed.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[1], "1000 × 10") || !strings.Contains(lines[1], "1 MiB") {
		t.Errorf("got\n%s", printed.String())
	}
}
