// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroups is the folder of cgroup v2.
const cgroups = "/sys/fs/cgroup"

// newCgroup moves a process into a new cgroup with a memory limit in bytes, as the kubelet does for a container. It
// returns the folder of the cgroup. It needs write access to root, and the memory controller of cgroup v2.
func newCgroup(root string, pid, limit int) (string, error) {
	enabled, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return "", err
	}
	if !slices.Contains(strings.Fields(string(enabled)), "memory") {
		return "", fmt.Errorf("%s has no memory controller", root)
	}
	dir, err := os.MkdirTemp(root, "useless-bench-")
	if err != nil {
		return "", err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "memory.max"), []byte(strconv.Itoa(limit)), 0o600),
		os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600),
	)
	if err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// limitMemory limits the memory of the process until it ends. The returned function adds the peak memory of the cgroup
// to a record. If there can be no cgroup, the function adds the reason instead.
func (p *process) limitMemory(limit int) (addPeak func(*Record) error) {
	dir, err := newCgroup(cgroups, p.PID(), limit)
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
		peak, err := os.ReadFile(filepath.Join(dir, "memory.peak"))
		if err != nil {
			return err
		}
		r.Values["cgroup_peak_bytes"], err = strconv.ParseFloat(strings.TrimSpace(string(peak)), 64)
		return err
	}
}
