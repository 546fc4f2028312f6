// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLock has a lock that one has, another wants and a third looks at.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache", "lock")
	one, another, third := &lock{path: path}, &lock{path: path}, &lock{path: path}
	check := func(when string, want int) {
		t.Helper()
		if got, err := third.holder(); err != nil || got != want {
			t.Errorf("holder %s: got %d, error %v, want %d", when, got, err, want)
		}
	}
	check("before", 0)
	if holder, err := one.acquire(); holder != 0 || err != nil {
		t.Fatalf("nobody has the lock: got holder %d, error %v", holder, err)
	}
	check("while one has it", os.Getpid())
	if err := one.name(4711); err != nil {
		t.Error(err)
	}
	if holder, err := another.acquire(); holder != 4711 || err != nil {
		t.Errorf("one has the lock: got holder %d, error %v, want 4711", holder, err)
	}
	one.release()
	check("after it", 0)
	if err := another.wait(t.Context()); err != nil {
		t.Error(err)
	}
	check("while another has it", os.Getpid())
	another.release()
}
