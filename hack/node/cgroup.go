// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
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

// makeCgroups makes a cgroup for the node in every hierarchy, and notes them.
func (n *node) makeCgroups() error {
	found, err := hierarchies()
	if err != nil {
		return err
	}
	var paths []string
	for _, h := range found {
		paths = append(paths, filepath.Join(h.parent(), fmt.Sprint(cgroupPrefix, os.Getpid())))
	}
	if err := os.WriteFile(n.path("cgroups"), []byte(strings.Join(paths, "\n")), 0o644); err != nil {
		return fmt.Errorf("make cgroups: %w", err)
	}
	for i, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make cgroups: %w", err)
		}
		switch found[i].controllers {
		case "cpuset":
			if err := inheritCPUs(path); err != nil {
				return fmt.Errorf("make cgroups: %w", err)
			}
		case "":
			_ = delegate(filepath.Dir(path)) // what the node lacks then, its kubelet tells
		}
	}
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

func (n *node) cgroups() ([]string, error) {
	text, err := os.ReadFile(n.path("cgroups"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}

// joinCgroups moves this process, and so its children, to the node's cgroups.
func (n *node) joinCgroups() error {
	paths, err := n.cgroups()
	if err != nil {
		return fmt.Errorf("join the node's cgroups: %w", err)
	}
	for _, path := range paths {
		if err := joinCgroup(path, 0); err != nil {
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
	return delegate(root)
}

// delegate gives the children of a cgroup of version 2 all controllers that it has.
func delegate(path string) error {
	controllers, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(controllers)) {
		err = errors.Join(err, os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+controller), 0))
	}
	return err
}

// removeCgroups removes the node's cgroups, when nothing runs in them any more.
func (n *node) removeCgroups() error {
	paths, err := n.cgroups()
	if err != nil {
		return fmt.Errorf("remove the node's cgroups: %w", err)
	}
	for _, path := range paths {
		var dirs []string
		_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
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
