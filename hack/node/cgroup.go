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
	// cgroupPrefix is the prefix of the name of a node's cgroup in every hierarchy.
	cgroupPrefix = "useless-node-"
	// cgroupRoot is the standard mount point of cgroups.
	cgroupRoot = "/sys/fs/cgroup"
)

// hierarchy is a mounted cgroup hierarchy.
type hierarchy struct {
	mount       string
	controllers string // the controllers of a version 1 hierarchy; empty for version 2
	own         string // the folder of this process's cgroup
}

// hierarchies returns the hierarchies that are mounted under /sys/fs/cgroup.
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

// findHierarchies parses a process's mountinfo and cgroup files in /proc.
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

// isMount reports whether a mount is the hierarchy of these controllers.
func isMount(fstype string, options []string, controllers string) bool {
	if controllers == "" {
		return fstype == "cgroup2"
	}
	return fstype == "cgroup" && !slices.ContainsFunc(strings.Split(controllers, ","), func(c string) bool {
		return !slices.Contains(options, c)
	})
}

// parent returns the cgroup that contains the node's cgroup. In version 1, the parent is the cgroup of this process, so
// the limits of this process also apply to the node. In version 2, the parent is the root, because a cgroup with
// processes cannot enable controllers for its children.
func (h hierarchy) parent() string {
	if h.controllers == "" {
		return h.mount
	}
	return h.own
}

// nodeCgroup is the node's cgroup in a hierarchy.
type nodeCgroup struct {
	Path string
	// Controllers are the version 2 controllers that the node enables in the parent cgroup. When this cgroup is
	// removed, they are disabled again.
	Controllers []string
}

// makeCgroups creates a cgroup for the node in every hierarchy. First it writes the list of these cgroups to a file. So
// a later command can remove them even if this process is killed.
func (n *node) makeCgroups() error {
	found, err := hierarchies()
	if err != nil {
		return err
	}
	var own []nodeCgroup
	for _, h := range found {
		c := nodeCgroup{Path: filepath.Join(h.parent(), fmt.Sprint(cgroupPrefix, os.Getpid()))}
		if h.controllers == "" {
			if c.Controllers, err = missingControllers(h.parent()); err != nil {
				return fmt.Errorf("make cgroups: %w", err)
			}
		}
		own = append(own, c)
	}
	list, err := json.Marshal(own)
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.path("cgroups"), list, 0o644); err != nil {
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
	_ = control(filepath.Dir(c.Path), "+", c.Controllers) // if a controller is missing, the kubelet reports it
	return nil
}

// inheritCPUs gives a version 1 cgroup the CPUs and the memory nodes of its parent. By default, a new cgroup has none.
// The children of the cgroup inherit them.
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

// cgroups returns the list that makeCgroups has written. If the list is missing or incomplete, it returns an empty
// list: makeCgroups has not created a cgroup yet.
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

// joinCgroups moves this process to the node's cgroups. Its children start in the same cgroups.
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

// joinCgroup moves a process to the cgroup in the folder path. The pid 0 means this process.
func joinCgroup(path string, pid int) error {
	return os.WriteFile(filepath.Join(path, "cgroup.procs"), fmt.Append(nil, pid), 0)
}

// mountCgroups mounts every hierarchy again. In the node's cgroup namespace, each new mount has the node's cgroup as
// its root.
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
	for controller := range strings.SplitSeq(h.controllers, ",") { // for example cpu -> cpu,cpuacct
		err := os.Symlink(filepath.Base(h.mount), filepath.Join(cgroupRoot, controller))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// leaveRoot moves this process and process 1 out of the root of the cgroup namespace. In version 2, only a cgroup
// without processes can enable controllers for its children.
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
	controllers, err := missingControllers(root)
	if err != nil {
		return err
	}
	return control(root, "+", controllers)
}

// kubeletControllers are the version 2 controllers that a kubelet uses if the kernel has them.
var kubeletControllers = []string{"cpu", "cpuset", "hugetlb", "memory", "pids"}

// missingControllers returns the kubelet's controllers that a version 2 cgroup has but does not enable for its
// children.
func missingControllers(path string) ([]string, error) {
	available, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	enabled, err := os.ReadFile(filepath.Join(path, subtreeControl))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(string(available)), func(controller string) bool {
		return !slices.Contains(kubeletControllers, controller) ||
			slices.Contains(strings.Fields(string(enabled)), controller)
	}), nil
}

// subtreeControl is the file with the controllers that a version 2 cgroup enables for its children.
const subtreeControl = "cgroup.subtree_control"

// control enables ("+") or disables ("-") controllers for the children of a version 2 cgroup.
func control(path, change string, controllers []string) (err error) {
	for _, controller := range controllers {
		err = errors.Join(err, os.WriteFile(filepath.Join(path, subtreeControl), []byte(change+controller), 0))
	}
	return err
}

// removeCgroups removes the node's cgroups. They must not contain processes.
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
			return nil // ignore the error: the folder may already be removed
		})
		for _, dir := range slices.Backward(dirs) {
			if err := removeCgroup(dir); err != nil {
				return fmt.Errorf("remove the node's cgroups: %w", err)
			}
		}
		// The kernel rejects this if another cgroup uses the controller in the meantime.
		_ = control(filepath.Dir(c.Path), "-", c.Controllers)
	}
	return nil
}

// removeCgroup removes a cgroup. It retries, because the kernel frees a cgroup a moment after its last process has
// ended.
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
