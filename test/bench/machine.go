// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"container.training/useless/hack/cluster"
)

// describeMachine returns a record that describes the computer and the versions of the programs. Absolute figures are
// valid only for this computer.
func describeMachine(ctx context.Context, programs cluster.Programs) (Record, error) {
	record := Record{Text: map[string]string{
		"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
		"date": time.Now().UTC().Format(time.DateOnly),
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
	cpus, cpuErr := fs.CPUInfo()
	memory, memoryErr := fs.Meminfo()
	kernel, kernelErr := os.ReadFile("/proc/sys/kernel/osrelease")
	if err := errors.Join(cpuErr, memoryErr, kernelErr); err != nil {
		return record, err
	}
	if len(cpus) > 0 {
		record.Text["cpu"] = cpus[0].ModelName
	}
	record.Text["kernel"] = strings.TrimSpace(string(kernel))
	record.Values = map[string]float64{"cores": float64(runtime.NumCPU())}
	if memory.MemTotalBytes != nil {
		record.Values["memory_bytes"] = float64(*memory.MemTotalBytes)
	}
	return record, nil
}
