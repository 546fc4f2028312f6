// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cgroupPrefix begins the name of a node's own cgroup in every hierarchy.
	cgroupPrefix = "useless-node-"
	// cgroupRoot is where programs look for cgroups.
	cgroupRoot = "/sys/fs/cgroup"
)

// hierarchy is a mounted cgroup hierarchy.
type hierarchy struct {
	mount       string
	controllers string // what version 1 mounts it with; empty for version 2
	own         string // the folder of this process's own cgroup
}

// hierarchies are those that are mounted under /sys/fs/cgroup.
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	found := findHierarchies(string(mounts), string(own))
	if len(found) == 0 {
		return nil, fmt.Errorf("find cgroups: none are mounted in %s", cgroupRoot)
	}
	return found, nil
}

// findHierarchies reads what the kernel says of a process's mounts and of its own cgroups.
func findHierarchies(mounts, own string) (found []hierarchy) {
	for line := range strings.Lines(mounts) {
		// 31 23 0:27 ROOT MOUNT OPTIONS ... - TYPE SOURCE SUPEROPTIONS
		before, after, _ := strings.Cut(line, " - ")
		b, a := strings.Fields(before), strings.Fields(after)
		if len(b) < 6 || len(a) < 3 || !strings.HasPrefix(b[4], cgroupRoot) {
			continue
		}
		root, mount, fstype, options := b[3], b[4], a[0], strings.Split(a[2], ",")
		for line := range strings.Lines(own) { // 4:memory:/own
			part := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(part) == 3 && isMount(fstype, options, part[1]) {
				below := strings.TrimPrefix(part[2], strings.TrimSuffix(root, "/"))
				found = append(found, hierarchy{mount: mount, controllers: part[1], own: filepath.Join(mount, below)})
			}
		}
	}
	return found
}

// isMount tells whether a mount is the hierarchy of these controllers.
func isMount(fstype string, options []string, controllers string) bool {
	if controllers == "" {
		return fstype == "cgroup2"
	}
	return fstype == "cgroup" && !slices.ContainsFunc(strings.Split(controllers, ","), func(c string) bool {
		return !slices.Contains(options, c)
	})
}

// parent is the cgroup that the node's own is made in. Version 1 lets the node stay within the limits of who starts it; in
// version 2 a cgroup that has processes cannot give its children controllers.
func (h hierarchy) parent() string {
	if h.controllers == "" {
		return h.mount
	}
	return h.own
}

// nodeCgroup is the node's own cgroup in a hierarchy.
type nodeCgroup struct {
	Path string
	// Controllers are those that the parent gives to its children only because of this one.
	Controllers []string
}

// makeCgroups makes a cgroup for the node in every hierarchy. It notes them before, so that whatever ends this process,
// nothing is forgotten.
func (n *node) makeCgroups() error {
	found, err := hierarchies()
	if err != nil {
		return err
	}
	var own []nodeCgroup
	for _, h := range found {
		c := nodeCgroup{Path: filepath.Join(h.parent(), fmt.Sprint(cgroupPrefix, os.Getpid()))}
		if h.controllers == "" {
			if c.Controllers, err = lacking(h.parent()); err != nil {
				return fmt.Errorf("make cgroups: %w", err)
			}
		}
		own = append(own, c)
	}
	note, err := json.Marshal(own)
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.path("cgroups"), note, 0o644); err != nil {
		return fmt.Errorf("make cgroups: %w", err)
	}
	for i, c := range own {
		if err := c.create(found[i].controllers == "cpuset"); err != nil {
			return fmt.Errorf("make cgroups: %w", err)
		}
	}
	return nil
}

func (c nodeCgroup) create(cpuset bool) error {
	if err := os.MkdirAll(c.Path, 0o755); err != nil {
		return err
	}
	if cpuset {
		return inheritCPUs(c.Path)
	}
	_ = control(filepath.Dir(c.Path), "+", c.Controllers) // what the node lacks then, its kubelet tells
	return nil
}

// inheritCPUs lets a cgroup of version 1 and all that will be in it use what its parent may: that is not the default.
func inheritCPUs(path string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(path), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(path, file), text, 0); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(path, "cgroup.clone_children"), []byte("1"), 0)
}

// cgroups are those that were noted. A note that is not complete is one of nothing.
func (n *node) cgroups() (own []nodeCgroup, err error) {
	text, err := os.ReadFile(n.path("cgroups"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if json.Unmarshal(text, &own) != nil {
		return nil, err
	}
	return own, err
}

// joinCgroups moves this process, and so its children, to the node's cgroups.
func (n *node) joinCgroups() error {
	own, err := n.cgroups()
	if err != nil {
		return fmt.Errorf("join the node's cgroups: %w", err)
	}
	for _, c := range own {
		if err := joinCgroup(c.Path, 0); err != nil {
			return fmt.Errorf("join the node's cgroups: %w", err)
		}
	}
	return nil
}

// joinCgroup moves a process; 0 is this one.
func joinCgroup(path string, pid int) error {
	return os.WriteFile(filepath.Join(path, "cgroup.procs"), fmt.Append(nil, pid), 0)
}

// mountCgroups mounts every hierarchy again, so that in its cgroup namespace the node's own cgroup is the root.
func mountCgroups(found []hierarchy) error {
	if !slices.ContainsFunc(found, func(h hierarchy) bool { return h.mount == cgroupRoot }) {
		if err := mount("tmpfs", cgroupRoot, "tmpfs", "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range found {
		if err := h.mountAgain(); err != nil {
			return err
		}
	}
	return nil
}

func (h hierarchy) mountAgain() error {
	if err := os.MkdirAll(h.mount, 0o755); err != nil {
		return err
	}
	if h.controllers == "" {
		if err := mount("cgroup2", h.mount, "cgroup2", ""); err != nil {
			return err
		}
		return leaveRoot(h.mount)
	}
	if strings.HasPrefix(h.controllers, "name=") {
		return mount("cgroup", h.mount, "cgroup", "none,"+h.controllers)
	}
	if err := mount("cgroup", h.mount, "cgroup", h.controllers); err != nil {
		return err
	}
	for controller := range strings.SplitSeq(h.controllers, ",") { // cpu is also found where it is cpu,cpuacct
		err := os.Symlink(filepath.Base(h.mount), filepath.Join(cgroupRoot, controller))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// leaveRoot moves this process and its parent out of the namespace's root: in version 2 only a cgroup without processes
// can give its children controllers.
func leaveRoot(root string) error {
	programs := filepath.Join(root, "programs")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	for _, pid := range []int{1, 0} {
		if err := joinCgroup(programs, pid); err != nil {
			return err
		}
	}
	controllers, err := lacking(root)
	if err != nil {
		return err
	}
	return control(root, "+", controllers)
}

// kubeletControllers are those of version 2 that a kubelet asks for, where the kernel has them.
var kubeletControllers = []string{"cpu", "cpuset", "hugetlb", "memory", "pids"}

// lacking are the controllers that a node needs in the children of a cgroup of version 2, and that it does not give them.
func lacking(path string) ([]string, error) {
	available, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	given, err := os.ReadFile(filepath.Join(path, subtreeControl))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(string(available)), func(controller string) bool {
		return !slices.Contains(kubeletControllers, controller) || slices.Contains(strings.Fields(string(given)), controller)
	}), nil
}

// subtreeControl is the file with the controllers that a cgroup of version 2 gives to its children.
const subtreeControl = "cgroup.subtree_control"

// control gives controllers to the children of a cgroup of version 2 ("+"), or takes them back ("-").
func control(path, change string, controllers []string) (err error) {
	for _, controller := range controllers {
		err = errors.Join(err, os.WriteFile(filepath.Join(path, subtreeControl), []byte(change+controller), 0))
	}
	return err
}

// removeCgroups removes the node's cgroups, when nothing runs in them any more.
func (n *node) removeCgroups() error {
	own, err := n.cgroups()
	if err != nil {
		return fmt.Errorf("remove the node's cgroups: %w", err)
	}
	for _, c := range own {
		var dirs []string
		_ = filepath.WalkDir(c.Path, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // what is gone is gone
		})
		for _, dir := range slices.Backward(dirs) {
			if err := removeCgroup(dir); err != nil {
				return fmt.Errorf("remove the node's cgroups: %w", err)
			}
		}
		_ = control(filepath.Dir(c.Path), "-", c.Controllers) // the kernel refuses where another's children need one by now
	}
	return nil
}

// removeCgroup waits for the kernel, which frees a cgroup a moment after the end of its last process.
func removeCgroup(dir string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
}
