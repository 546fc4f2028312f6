// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindHierarchies(t *testing.T) {
	for _, test := range []struct {
		reason string
		mounts string
		own    string
		want   []hierarchy
	}{{
		reason: "version 2 mounted by systemd",
		mounts: `
24 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
32 25 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`,
		own:  "0::/user.slice/user-0.slice/session-1.scope\n",
		want: []hierarchy{{mount: "/sys/fs/cgroup", own: "/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope"}},
	}, {
		reason: "version 1 with a mount for one or several controllers, and version 2 without controllers",
		mounts: `
30 25 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:8 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/systemd rw shared:10 - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/cpuset rw shared:12 - cgroup cgroup rw,cpuset
`,
		own: "3:cpuset:/\n2:cpu,cpuacct:/jobs/7\n1:name=systemd:/\n0::/\n",
		want: []hierarchy{
			{mount: "/sys/fs/cgroup/unified", own: "/sys/fs/cgroup/unified"},
			{mount: "/sys/fs/cgroup/systemd", controllers: "name=systemd", own: "/sys/fs/cgroup/systemd"},
			{mount: "/sys/fs/cgroup/cpu,cpuacct", controllers: "cpu,cpuacct", own: "/sys/fs/cgroup/cpu,cpuacct/jobs/7"},
			{mount: "/sys/fs/cgroup/cpuset", controllers: "cpuset", own: "/sys/fs/cgroup/cpuset"},
		},
	}, {
		reason: "in a container the root of the mount is the container's cgroup",
		mounts: "34 30 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
		own:    "9:memory:/docker/abc/jobs\n",
		want:   []hierarchy{{mount: "/sys/fs/cgroup/memory", controllers: "memory", own: "/sys/fs/cgroup/memory/jobs"}},
	}, {
		reason: "mounts outside /sys/fs/cgroup are ignored",
		mounts: "34 30 0:30 / /mnt/memory rw - cgroup cgroup rw,memory\n",
		own:    "9:memory:/\n",
	}} {
		t.Run(test.reason, func(t *testing.T) {
			got := findHierarchies(test.mounts, test.own)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(hierarchy{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestControllers creates a version 2 cgroup and a child. It enables the missing controllers for the child, and
// disables them again.
func TestControllers(t *testing.T) {
	skipWithoutNodes(t)
	found, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found, func(h hierarchy) bool { return h.controllers == "" })
	if i < 0 {
		t.Skip("there is no cgroup hierarchy of version 2")
	}
	parent := nodeCgroup{Path: filepath.Join(found[i].mount, fmt.Sprint("useless-test-", os.Getpid()))}
	if parent.Controllers, err = missingControllers(found[i].mount); err != nil {
		t.Fatal(err)
	}
	child := filepath.Join(parent.Path, "child")
	t.Cleanup(func() {
		err := errors.Join(removeCgroup(child), removeCgroup(parent.Path), control(found[i].mount, "-", parent.Controllers))
		if err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(parent.create(false), os.Mkdir(child, 0o755)); err != nil {
		t.Fatal(err)
	}
	needed := mustMissingControllers(t, parent.Path)
	if len(needed) == 0 {
		t.Skip("the version 2 hierarchy has none of the kubelet's controllers")
	}
	for _, step := range []struct {
		change        string
		want, missing []string
	}{{"+", needed, nil}, {"-", nil, needed}} {
		if err := control(parent.Path, step.change, needed); err != nil {
			t.Error(err)
		}
		got := strings.Fields(read(t, filepath.Join(child, "cgroup.controllers")))
		missing := mustMissingControllers(t, parent.Path)
		if !slices.Equal(got, step.want) || !slices.Equal(missing, step.missing) {
			t.Errorf("after %q the child has %q and misses %q, want %q and %q",
				step.change, got, missing, step.want, step.missing)
		}
	}
}

func mustMissingControllers(t *testing.T, path string) []string {
	t.Helper()
	controllers, err := missingControllers(path)
	if err != nil {
		t.Fatal(err)
	}
	return controllers
}
