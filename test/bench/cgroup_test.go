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
	control := filepath.Join(root, "cgroup.subtree_control")
	for controllers, ok := range map[string]bool{"cpu memory\n": true, "cpu hugetlb\n": false} {
		if err := os.WriteFile(control, []byte(controllers), 0o600); err != nil {
			t.Fatal(err)
		}
		dir, err := newCgroup(root, 12, 345)
		if (err == nil) != ok {
			t.Errorf("controllers %q: got error %v", controllers, err)
		}
		if !ok {
			continue
		}
		for file, want := range map[string]string{"cgroup.procs": "12", "memory.max": "345"} {
			if got, err := os.ReadFile(filepath.Join(dir, file)); string(got) != want {
				t.Errorf("%s: got %q and error %v, want %q", file, got, err, want)
			}
		}
	}
}
