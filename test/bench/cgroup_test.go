// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNewCgroup(t *testing.T) {
	root := t.TempDir()
	checkCgroup(t, memoryHierarchy(root), "memory.max")
	if err := os.Mkdir(filepath.Join(root, "memory"), 0o700); err != nil {
		t.Fatal(err)
	}
	checkCgroup(t, memoryHierarchy(root), "memory.limit_in_bytes")
}

func checkCgroup(t *testing.T, h hierarchy, limit string) {
	t.Helper()
	dir, err := h.newCgroup(12, 345)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cgroup.procs": "12", limit: "345"} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); string(got) != want {
			t.Errorf("%s: got %q and error %v, want %q", file, got, err, want)
		}
	}
}
