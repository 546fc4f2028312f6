// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestFlipMemory(t *testing.T) {
	f, m := newFlipMemory(), newMachine(1)
	done, both := flips{done: now}, flips{done: now.Add(-time.Minute), attempted: now}
	for _, step := range []struct {
		reason string
		do     func()
		want   flips
	}{
		{"at first no flip is known", func() {}, flips{}},
		{"a flip is recorded", func() { f.record(m, done) }, done},
		{"a status with an earlier flip does not replace it", func() { lastFlipped(time.Second)(m) }, done},
		{"a status with this flip replaces it", func() { lastFlipped(0)(m) }, flips{}},
		{"an attempt is also recorded", func() { lastFlipped(time.Minute)(m); f.record(m, both) }, both},
		{"another Machine with the same name has no flips", func() { m.UID = "another" }, flips{}},
	} {
		step.do()
		if got := f.of(m); got != step.want {
			t.Errorf("%s: got %+v, want %+v", step.reason, got, step.want)
		}
	}
	f.forget(client.ObjectKeyFromObject(m))
	if len(f.machines) > 0 {
		t.Errorf("a deleted Machine still has recorded flips: %v", f.machines)
	}
}
