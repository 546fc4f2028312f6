// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/invariants"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestAddFaults(t *testing.T) {
	u := &users{checker: invariants.NewChecker(0)}
	values := map[string]float64{}
	if err := u.addFaults(values, []flip{{}}); err != nil {
		t.Errorf("correct flip: %v", err)
	}
	if diff := cmp.Diff(map[string]float64{"early": 0, "crowded": 0, "doubled": 0}, values); diff != "" {
		t.Errorf("correct flip (-want +got):\n%s", diff)
	}
	for generation := range int64(2) { // the second status has an older observedGeneration
		m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "bad", UID: "1"}}
		m.Status.ObservedGeneration = 2 - generation
		u.checker.Add(invariants.Revision{Type: watch.Modified, Object: m})
	}
	err := u.addFaults(values, []flip{{}, {Flip: invariants.Flip{Violation: invariants.Crowded}}})
	if diff := cmp.Diff(map[string]float64{"early": 0, "crowded": 1, "doubled": 0}, values); diff != "" {
		t.Errorf("crowded flip (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "1 violations") || !strings.Contains(err.Error(), "/bad: ") {
		t.Errorf("got error %v, want the violation of Machine bad", err)
	}
}

// lateFlips returns flips that are due at a constant rate, with their lateness in seconds.
func lateFlips(perSecond float64, late ...float64) (flips []flip) {
	for i, seconds := range late {
		due := after(float64(i) / perSecond)
		flips = append(flips, flip{invariants.Flip{Due: due}, due.Add(time.Duration(seconds * float64(time.Second)))})
	}
	return flips
}

func TestAddPercentiles(t *testing.T) {
	values := map[string]float64{}
	addPercentiles(values, "none", nil)
	addLateness(values, lateFlips(1, 4, 1, 2, 3))
	var many []float64
	for i := range window {
		many = append(many, float64(i+1))
	}
	addPercentiles(values, "many", many)
	want := map[string]float64{
		"lateness_samples": 4, "lateness_p50_seconds": 2, "lateness_max_seconds": 4,
		"many_samples": window, "many_p50_seconds": 500, "many_p99_seconds": 990, "many_max_seconds": window,
	}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHear(t *testing.T) {
	const up, down = v1beta1.PositionUp, v1beta1.PositionDown
	owner := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1"}}
	status := func(up int32) client.Object {
		m := owner.DeepCopy()
		m.Status.Switches.Up = up
		return m
	}
	position := func(position v1beta1.Position, flippedAt time.Time) client.Object {
		sw := &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{Name: "m-0", UID: "2", Labels: owner.SwitchLabels()}}
		sw.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(owner, v1beta1.GroupVersion.WithKind("Machine")),
		}
		sw.Spec.Position, sw.Status.SeenAt = position, new(metav1.NewMicroTime(noon))
		if !flippedAt.IsZero() {
			metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, flippedAt.Format(time.RFC3339Nano))
		}
		return sw
	}
	u := newUsers(nil, size{1, 1})
	machine := <-u.resting
	u.sent.Store("m", after(-1))
	var flips []flip
	for i, object := range []client.Object{
		status(0), position(down, time.Time{}), position(up, time.Time{}), status(1),
		status(0), position(down, after(5)), // the status arrives first
		position(up, after(5)), position(down, after(11)), // no status counts the change before the next one
	} {
		u.checker.Add(invariants.Revision{Object: owner})
		f, ok, err := u.hear(watch.Event{Type: watch.Modified, Object: object}, after(float64(i)))
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			flips = append(flips, f)
			<-u.resting
		}
	}
	if machine != nameOf(0) || len(flips) != 2 || flips[0].Violation != "" || flips[0].late() != time.Second {
		t.Errorf("got Machine %s and flips %+v, want two flips, the first one with a lateness of 1s", machine, flips)
	}
	lags := []lag{{after(2), time.Second}, {after(5), 0}, {after(6), time.Second}, {after(7), 0}}
	if diff := cmp.Diff(lags, u.lags, cmp.AllowUnexported(lag{})); diff != "" || u.open != 0 {
		t.Errorf("%d changes are open; lags (-want +got):\n%s", u.open, diff)
	}
	if _, _, err := u.hear(watch.Event{}, noon); err == nil {
		t.Error("got no error after the end of the watch")
	}
}

func take(n int, times iter.Seq[time.Duration]) (taken []time.Duration) {
	for at := range times {
		if taken = append(taken, at); len(taken) == n {
			break
		}
	}
	return taken
}

func TestPoisson(t *testing.T) {
	const n, perSecond = 10_000, 100
	steady := func(time.Duration) float64 { return perSecond }
	times := take(n+1, poisson(1, steady))
	if !slices.Equal(times, take(n+1, poisson(1, steady))) {
		t.Error("the same seed gave other times")
	}
	if slices.Equal(times, take(n+1, poisson(2, steady))) {
		t.Error("another seed gave the same times")
	}
	if !slices.IsSorted(times) {
		t.Error("the times are not sorted")
	}
	mean := times[n].Seconds() / n
	variance := 0.
	for i := range n {
		gap := (times[i+1] - times[i]).Seconds() - mean
		variance += gap * gap / n
	}
	// The variance of an exponential distribution is the square of its mean.
	if ratio := mean * perSecond; ratio < .95 || ratio > 1.05 {
		t.Errorf("mean gap / expected mean is %.2f", ratio)
	}
	if ratio := variance * perSecond * perSecond; ratio < .9 || ratio > 1.1 {
		t.Errorf("variance of the gaps / expected variance is %.2f", ratio)
	}
}
