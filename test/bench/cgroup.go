// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A hierarchy is a folder of cgroups with the memory controller, and the names of its files.
type hierarchy struct{ root, limit, peak string }

// memoryHierarchy returns the hierarchy of cgroup v1 in sysfs, or of v2 if there is none.
func memoryHierarchy(sysfs string) hierarchy {
	v1 := hierarchy{filepath.Join(sysfs, "memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"}
	if _, err := os.Stat(v1.root); err == nil {
		return v1
	}
	return hierarchy{sysfs, "memory.max", "memory.peak"}
}

// newCgroup moves a process into a new cgroup with a memory limit in bytes, as the kubelet does for a container. It
// returns the folder of the cgroup.
func (h hierarchy) newCgroup(pid, limit int) (string, error) {
	dir, err := os.MkdirTemp(h.root, "useless-bench-")
	if err != nil {
		return "", err
	}
	for file, value := range map[string]int{h.limit: limit, "cgroup.procs": pid} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0o600); err != nil {
			return "", errors.Join(err, os.Remove(dir))
		}
	}
	return dir, nil
}

// limitMemory limits the memory of the process until it ends. The returned function adds the peak memory of the cgroup
// to a record. If there can be no cgroup, the function adds the reason instead.
func (p *process) limitMemory(limit int) (addPeak func(*Record) error) {
	h := memoryHierarchy("/sys/fs/cgroup")
	dir, err := h.newCgroup(p.PID(), limit)
	if err != nil {
		return func(r *Record) error {
			r.Text = map[string]string{"cgroup": err.Error()}
			return nil
		}
	}
	go func() {
		<-p.Done()
		_ = os.Remove(dir)
	}()
	return func(r *Record) error {
		peak, err := os.ReadFile(filepath.Join(dir, h.peak))
		if err != nil {
			return err
		}
		r.Values["cgroup_peak_bytes"], err = strconv.ParseFloat(strings.TrimSpace(string(peak)), 64)
		return err
	}
}
