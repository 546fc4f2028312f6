// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// switchUp is a switch of generation 2, turned up and noticed so many seconds after noon.
func switchUp(name string, seen float64) *v1beta1.Switch {
	sw := &v1beta1.Switch{Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionUp}}
	sw.Name, sw.Generation, sw.Labels = name, 2, map[string]string{v1beta1.MachineLabel: "m"}
	sw.Status = v1beta1.SwitchStatus{ObservedGeneration: 2, SeenAt: new(metav1.NewMicroTime(after(seen)))}
	return sw
}

// switchDown is what becomes of it when it is turned down.
func switchDown(name string, seen, flipped float64) *v1beta1.Switch {
	sw := switchUp(name, seen)
	sw.Generation, sw.Spec.Position = 3, v1beta1.PositionDown
	sw.Annotations = map[string]string{v1beta1.FlippedAtAnnotation: after(flipped).Format(metav1.RFC3339Micro)}
	return sw
}

func TestLedger(t *testing.T) {
	unnoticed := switchDown("a", 0, 6)
	unnoticed.Status.ObservedGeneration = 1
	again := switchDown("a", 0, 12)
	again.Generation = 4
	garbled := switchDown("a", 0, 6)
	garbled.Annotations[v1beta1.FlippedAtAnnotation] = "noon"
	forgotten := switchDown("a", 0, 6)
	forgotten.Status.SeenAt = nil

	for _, test := range []struct {
		reason   string
		switches []*v1beta1.Switch
		want     []flip
	}{
		{"a switch that is only turned up is no flip", []*v1beta1.Switch{switchUp("a", 0)}, nil},
		{"one that was down when the harness came was not turned down now", []*v1beta1.Switch{switchDown("a", 0, 6)}, nil},
		{"a flip is due after the delay", []*v1beta1.Switch{switchUp("a", 0), switchDown("a", 0, 6)},
			[]flip{{machine: "m", due: after(5), decided: after(6)}}},
		{"that its status is cleared later is no second one", []*v1beta1.Switch{switchUp("a", 0), switchDown("a", 0, 6), forgotten},
			[]flip{{machine: "m", due: after(5), decided: after(6)}}},
		{"the very instant is not early", []*v1beta1.Switch{switchUp("a", 0), switchDown("a", 0, 5)},
			[]flip{{machine: "m", due: after(5), decided: after(5)}}},
		{"a microsecond before it is", []*v1beta1.Switch{switchUp("a", 0), switchDown("a", 0, 4.999999)},
			[]flip{{machine: "m", due: after(5), decided: after(4.999999), fault: early}}},
		{"what was noticed of an earlier generation does not count", []*v1beta1.Switch{switchUp("a", 0), unnoticed},
			[]flip{{machine: "m", decided: after(6), fault: early}}},
		{"without an instant nothing shows that it waited", []*v1beta1.Switch{switchUp("a", 0), garbled},
			[]flip{{machine: "m", due: after(5), fault: early}}},
		{"the next one of a Machine is due after the interval",
			[]*v1beta1.Switch{switchUp("a", 0), switchUp("b", 1), switchDown("a", 0, 5.5), switchDown("b", 1, 10.5)},
			[]flip{{machine: "m", due: after(5), decided: after(5.5)}, {machine: "m", due: after(10.5), decided: after(10.5)}}},
		{"and not before",
			[]*v1beta1.Switch{switchUp("a", 0), switchUp("b", 1), switchDown("a", 0, 5.5), switchDown("b", 1, 10)},
			[]flip{{machine: "m", due: after(5), decided: after(5.5)}, {machine: "m", due: after(10.5), decided: after(10), fault: crowded}}},
		{"a switch is turned down once", []*v1beta1.Switch{switchUp("a", 0), switchDown("a", 0, 6), again},
			[]flip{{machine: "m", due: after(5), decided: after(6)}, {machine: "m", decided: after(12), fault: doubled}}},
	} {
		ledger := newLedger(5 * time.Second)
		var got []flip
		for _, sw := range test.switches {
			if f, ok := ledger.look(sw, time.Time{}); ok {
				got = append(got, f)
			}
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(flip{})); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", test.reason, diff)
		}
	}
}

func TestAddFaults(t *testing.T) {
	values := map[string]float64{}
	if err := addFaults(values, []flip{{machine: "m"}}); err != nil {
		t.Errorf("a good flip: %v", err)
	}
	if diff := cmp.Diff(map[string]float64{early: 0, crowded: 0, doubled: 0}, values); diff != "" {
		t.Errorf("a good flip (-want +got):\n%s", diff)
	}
	err := addFaults(values, []flip{{machine: "good"}, {machine: "bad", fault: crowded}})
	if diff := cmp.Diff(map[string]float64{early: 0, crowded: 1, doubled: 0}, values); diff != "" {
		t.Errorf("a bad flip (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "machine:bad") {
		t.Errorf("a bad flip: got error %v, want one that names it", err)
	}
}

func TestLateness(t *testing.T) {
	var flips []flip
	for i := range 100 { // from 10 ms to 1 s, and decided half of that after they were due
		late := time.Duration(i+1) * 10 * time.Millisecond
		flips = append(flips, flip{due: noon, decided: noon.Add(late / 2), heard: noon.Add(late)})
	}
	values := map[string]float64{}
	addLateness(values, flips)
	want := map[string]float64{
		"lateness_p50_seconds": .5, "lateness_p99_seconds": .99, "lateness_max_seconds": 1,
		"lateness_at_least_p50_seconds": .25, "lateness_at_least_p99_seconds": .495, "lateness_at_least_max_seconds": .5,
	}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("percentiles (-want +got):\n%s", diff)
	}
	clear(values)
	addHistogram(values, flips)
	for name, want := range map[string]float64{"flips_within_0.005_seconds": 0, "flips_within_0.05_seconds": 5, "flips_within_1_seconds": 100} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v: %v", name, got, want, values)
		}
	}
	if len(values) != len(latenessBuckets) {
		t.Errorf("%d buckets, want %d", len(values), len(latenessBuckets))
	}
}

func TestMeasured(t *testing.T) {
	l := load{warmup: 10 * time.Second, length: 30 * time.Second}
	var flips []flip
	for _, due := range []float64{9.9, 10, 39.9, 40} {
		flips = append(flips, flip{due: after(due), heard: after(50)})
	}
	want := flips[1:3]
	if diff := cmp.Diff(want, l.due(flips, noon), cmp.AllowUnexported(flip{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestToFIFO(t *testing.T) {
	flips := []flip{{due: after(0), heard: after(10)}, {due: after(4), heard: after(12)}}
	if got := toFIFO(flips); got != 1 {
		t.Errorf("in order: %v, want 1", got)
	}
	flips[0].heard, flips[1].heard = flips[1].heard, flips[0].heard
	if got := toFIFO(flips); got != 1.2 {
		t.Errorf("the first one comes last: %v, want 12 s to 10 s", got)
	}
}
