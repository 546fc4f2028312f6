// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/versioned"
)

// A flip is a switch that was turned down, as the harness heard of it. The operator wrote it after it was decided and
// before it was heard of: its lateness is between the two.
type flip struct {
	machine string
	due     time.Time // not to be written before
	decided time.Time // the annotation flipped-at
	heard   time.Time
	fault   string // what is wrong with it; empty if nothing is
}

// late is how late the flip was at most.
func (f flip) late() float64 { return f.heard.Sub(f.due).Seconds() }

// surelyLate is how late it was at least.
func (f flip) surelyLate() float64 { return f.decided.Sub(f.due).Seconds() }

// What can be wrong with a flip.
const (
	early   = "early"   // before the switch had been up for the delay, or unnoticed
	crowded = "crowded" // less than the interval after the Machine's flip before
	doubled = "doubled" // of a switch that was down
)

// A ledger follows the switches of Machines that have these times, and judges flips by them.
type ledger struct {
	delay, interval time.Duration

	switches map[string]position
	last     map[string]time.Time // flip of each Machine
}

// A position is where a switch is, and when it was last turned down.
type position struct {
	up        bool
	flippedAt string
}

// newLedger is for Machines that wait for this long before they turn a switch down, and that name no interval.
func newLedger(delay time.Duration) *ledger {
	interval := time.Duration(v1beta1.DefaultFlipSeconds) * time.Second
	return &ledger{delay, interval, map[string]position{}, map[string]time.Time{}}
}

// look takes what was heard of a switch, and tells whether it was a flip.
func (l *ledger) look(sw *v1beta1.Switch, heard time.Time) (flip, bool) {
	before, known := l.switches[sw.Name]
	now := position{sw.Spec.Position == v1beta1.PositionUp, sw.Annotations[v1beta1.FlippedAtAnnotation]}
	l.switches[sw.Name] = now
	if !known || now.up || now.flippedAt == before.flippedAt {
		return flip{}, false
	}
	f := flip{machine: sw.Labels[v1beta1.MachineLabel], heard: heard}
	f.decided, _ = time.Parse(time.RFC3339Nano, now.flippedAt) // what does not parse is early by far
	last := l.last[f.machine]
	l.last[f.machine] = f.decided
	status := sw.Status
	switch {
	case !before.up:
		f.fault = doubled
	case status.SeenAt == nil || status.ObservedGeneration != sw.Generation-1:
		f.fault = early
	default:
		f.due = status.SeenAt.Add(l.delay)
		if f.decided.Before(f.due) {
			f.fault = early
		} else if f.decided.Before(last.Add(l.interval)) {
			f.fault = crowded
		}
		if next := last.Add(l.interval); next.After(f.due) {
			f.due = next
		}
	}
	return f, true
}

// patience is how long to wait for the next flip.
const patience = time.Minute

// Errors of those who wait for a flip.
var (
	errWatchEnded = errors.New("the watch of switches has ended")
	errNoFlip     = fmt.Errorf("no switch was turned down for %s", patience)
)

// follow tells of every flip from now on, until the watch or the context ends.
func (w *world) follow(ctx context.Context, l *ledger) (<-chan flip, error) {
	clientset, err := versioned.NewForConfig(w.plane.Config)
	if err != nil {
		return nil, err
	}
	switches := clientset.UselessV1beta1().Switches(metav1.NamespaceDefault)
	list, err := switches.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		l.look(&list.Items[i], time.Now())
	}
	watcher, err := changes(ctx, list.ResourceVersion, switches.Watch)
	if err != nil {
		return nil, err
	}
	flips := make(chan flip, len(list.Items))
	go func() {
		defer close(flips)
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			sw, ok := event.Object.(*v1beta1.Switch)
			if !ok {
				return // the watch has ended
			}
			if f, ok := l.look(sw, time.Now()); ok {
				select {
				case flips <- f:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return flips, nil
}

// changes watches something from a version on. The watch goes on where the API server ends it, as it does with those that
// it finds slow, which on a busy machine can be any.
func changes(ctx context.Context, version string, watch cache.WatchFuncWithContext) (*toolswatch.RetryWatcher, error) {
	return toolswatch.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{WatchFuncWithContext: watch})
}

// faults counts what is wrong with flips, zeros included.
func faults(flips []flip) map[string]float64 {
	counts := map[string]float64{early: 0, crowded: 0, doubled: 0}
	for _, f := range flips {
		if f.fault != "" {
			counts[f.fault]++
		}
	}
	return counts
}

// addFaults puts the counts of faults among the values. It fails if there are any: nothing that such an operator does is
// worth measuring.
func addFaults(values map[string]float64, flips []flip) error {
	counts := faults(flips)
	maps.Copy(values, counts)
	if counts[early]+counts[crowded]+counts[doubled] == 0 {
		return nil
	}
	first := flips[slices.IndexFunc(flips, func(f flip) bool { return f.fault != "" })]
	return fmt.Errorf("flips that must not be: %v, the first of them is %+v", counts, first)
}

// addLateness puts the percentiles of what flips were late among the values.
func addLateness(values map[string]float64, flips []flip) {
	for name, lateness := range map[string]func(flip) float64{"lateness": flip.late, "lateness_at_least": flip.surelyLate} {
		all := make([]float64, 0, len(flips))
		for _, f := range flips {
			all = append(all, lateness(f))
		}
		for percent, name := range map[float64]string{50: name + "_p50", 99: name + "_p99", 100: name + "_max"} {
			values[name+"_seconds"] = percentile(all, percent)
		}
	}
}

// latenessBuckets are the bounds of the histogram, in seconds.
var latenessBuckets = []float64{.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}

// addHistogram puts among the values how many flips were no later than each bound.
func addHistogram(values map[string]float64, flips []flip) {
	for _, bound := range latenessBuckets {
		n := 0.
		for _, f := range flips {
			if f.late() <= bound {
				n++
			}
		}
		values[fmt.Sprintf("flips_within_%g_seconds", bound)] = n
	}
}
