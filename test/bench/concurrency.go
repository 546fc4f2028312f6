// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
)

// concurrency finds how many Machines at a time are best for the bare loop, which then works on as many, and shows what
// they are for the operator.
func concurrency(ctx context.Context, b *bench) error {
	if b.quick {
		return nil
	}
	var floors, ours []contender
	for _, n := range []string{"16", "32", "64"} {
		c := fromBaseline("bare+informer", n)
		c.name += " " + n
		floors = append(floors, c)
	}
	for _, n := range []string{"16", "32", "64"} {
		ours = append(ours, contender{name: b.ours.name + " " + n, kind: machines, start: func(w *world) (*operator, error) {
			return w.startManager(b.ours.name, "--concurrent-machine-syncs="+n)
		}})
	}
	r := race{b, "concurrency", size{200, 10}, 5, append(floors, ours...)}
	if err := r.run(ctx); err != nil {
		return err
	}
	records, err := b.recorded()
	if err != nil {
		return err
	}
	b.concurrency = records.quickest("concurrency", r.size.String(), "bare+informer ")
	b.say("the bare loop is quickest with %s Machines at a time", b.concurrency)
	return nil
}

// quickest is what follows the prefix in the name of the contender that took least time for a child.
func (r results) quickest(experiment, kase, prefix string) (suffix string) {
	least := 0.
	for _, record := range r {
		after, ok := strings.CutPrefix(record.Contender, prefix)
		if !ok || record.Round != 1 {
			continue
		}
		each := overall(r.byRound(experiment, kase, record.Contender), 0, "seconds", "children")
		if suffix == "" || each < least {
			suffix, least = after, each
		}
	}
	return suffix
}
