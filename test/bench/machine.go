// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"container.training/useless/hack/cluster"
)

// describeMachine says what measures: what is absolute in the results is true of this machine only.
func describeMachine(ctx context.Context, programs cluster.Programs) (Record, error) {
	record := Record{Text: map[string]string{
		"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH, "date": time.Now().UTC().Format(time.DateOnly),
	}}
	for name, command := range map[string][]string{
		"commit":     {"git", "describe", "--always", "--dirty", "--abbrev=12"},
		"etcd":       {programs.Path("etcd"), "--version"},
		"kubernetes": {programs.Path("kube-apiserver"), "--version"},
	} {
		out, err := output(ctx, command[0], command[1:]...)
		if err != nil {
			return record, err
		}
		first, _, _ := strings.Cut(out, "\n")
		record.Text[name] = first[strings.LastIndex(first, " ")+1:]
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return record, err
	}
	cpus, err := fs.CPUInfo()
	if err != nil {
		return record, err
	}
	if len(cpus) > 0 {
		record.Text["cpu"] = cpus[0].ModelName
	}
	memory, err := fs.Meminfo()
	if err != nil || memory.MemTotalBytes == nil {
		return record, fmt.Errorf("read the size of the memory: %w", err)
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return record, err
	}
	record.Text["kernel"] = strings.TrimSpace(string(kernel))
	fsync, err := fsyncSeconds()
	record.Values = map[string]float64{
		"cores": float64(runtime.NumCPU()), "memory_bytes": float64(*memory.MemTotalBytes), "fsync_seconds": fsync,
	}
	return record, err
}

// fsyncSeconds is how long the disk with the folder for temporary files, where etcd writes, usually takes to keep 4 KiB.
func fsyncSeconds() (float64, error) {
	file, err := os.CreateTemp("", "useless-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	seconds, page := make([]float64, 100), make([]byte, 4<<10)
	for i := range seconds {
		start := time.Now()
		if _, err := file.Write(page); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		seconds[i] = time.Since(start).Seconds()
	}
	return median(seconds), nil
}
