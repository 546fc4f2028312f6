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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/versioned"
	"container.training/useless/test/history"
)

// A flip is a switch that was turned down, as the harness heard of it. The operator wrote it after it was decided and
// before it was heard of: its lateness is between the two.
type flip struct {
	history.Flip

	heard time.Time
}

// late is how late the flip was at most.
func (f flip) late() float64 { return f.heard.Sub(f.Due).Seconds() }

// surelyLate is how late it was at least.
func (f flip) surelyLate() float64 { return f.At.Sub(f.Due).Seconds() }

// patience is how long to wait for the next flip.
const patience = time.Minute

// Errors of those who wait for a flip.
var (
	errWatchEnded = errors.New("the watch of switches has ended")
	errNoFlip     = fmt.Errorf("no switch was turned down for %s", patience)
)

// follow tells of every flip from now on, until the watch or the context ends, and has the world blamed for whatever becomes
// of switches that must not. Meanwhile nobody makes Machines or asks them for anything else.
func (w *world) follow(ctx context.Context) (<-chan flip, error) {
	clientset, err := versioned.NewForConfig(w.plane.Config)
	if err != nil {
		return nil, err
	}
	group := clientset.UselessV1beta1()
	machines, err := group.Machines(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	list, err := group.Switches(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	checker := history.NewChecker(0)
	for i := range machines.Items {
		checker.See(history.Revision{Type: watch.Added, Object: &machines.Items[i]})
	}
	for i := range list.Items {
		checker.See(history.Revision{Type: watch.Added, Object: &list.Items[i]})
	}
	watcher, err := changes(ctx, list.ResourceVersion, group.Switches(metav1.NamespaceDefault).Watch)
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
			known := len(checker.Faults())
			f, ok := checker.See(history.Revision{Type: event.Type, Object: sw})
			w.blame(checker.Faults()[known:])
			if ok {
				select {
				case flips <- flip{f, time.Now()}:
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

// addFaults puts the counts of faults among the values, zeros included. It fails if there are any: nothing that such an
// operator does is worth measuring.
func addFaults(values map[string]float64, flips []flip) error {
	counts := map[string]float64{history.Early: 0, history.Crowded: 0, history.Doubled: 0}
	faulty := slices.DeleteFunc(slices.Clone(flips), func(f flip) bool { return f.Fault == "" })
	for _, f := range faulty {
		counts[f.Fault]++
	}
	maps.Copy(values, counts)
	if len(faulty) == 0 {
		return nil
	}
	return fmt.Errorf("flips that must not be: %v, the first of them is %+v", counts, faulty[0])
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
