// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// separateProcessors moves the test, with the operator and the minimal client, to the first processor until the test
// ends. It moves the control plane to the others.
func (b *burst) separateProcessors() {
	b.Helper()
	all := unix.CPUSet{}
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
		b.Fatalf("the comparison needs two processors; this process has %d, error %v", all.Count(), err)
	}
	first, others := unix.CPUSet{}, all
	for cpu := 0; first.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			first.Set(cpu)
			others.Clear(cpu)
		}
	}
	place := func(test, controlPlane unix.CPUSet) {
		b.move(os.Getpid(), test)
		for _, process := range clusterOf(b).Processes() {
			b.move(process.PID(), controlPlane)
		}
	}
	b.Cleanup(func() { place(all, all) })
	place(first, others)
}

// move moves all threads of a process to a set of processors. New threads inherit it.
func (b *burst) move(pid int, to unix.CPUSet) {
	b.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = unix.SchedSetaffinity(id, &to)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // the thread has ended
			b.Fatal(err)
		}
	}
}
