// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// initCommand is the command of the node's first process. This process holds the lock. When it ends, the kernel kills
// all other processes of the node.
const initCommand = "init"

// lockDescriptor is the file descriptor of the lock in the first process.
const lockDescriptor = 3

// exitTerminated is the exit code that shells use for a process that SIGTERM has ended.
const exitTerminated = 128 + int(unix.SIGTERM)

// runInit moves this process to the node's cgroups. Then it starts the supervisor as a child in a new cgroup namespace:
// the root of a new namespace is the current cgroup of the process that creates it. Finally, runInit reaps orphaned
// processes, as every init process does.
func runInit(ctx context.Context, n *node) error {
	context.AfterFunc(ctx, func() { os.Exit(exitTerminated) })
	unix.CloseOnExec(lockDescriptor)
	if err := errors.Join(forgetProxies(), n.joinCgroups()); err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(executable, superviseCommand)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWCGROUP}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	// Standard output and standard error are a pipe to the process that starts the node. That process reads the pipe
	// until all writers have closed it. The supervisor closes it when the node is ready, so this process closes it now.
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Dup3(int(null.Fd()), 1, 0), unix.Dup3(int(null.Fd()), 2, 0)); err != nil {
		return err
	}
	go exitWithStarter()
	return reap(cmd.Process.Pid)
}

// exitWithStarter ends the node if its starter ends before the node is ready. When the node is ready, the starter
// writes a byte to standard input.
func exitWithStarter() {
	if n, _ := os.Stdin.Read(make([]byte, 1)); n == 0 {
		os.Exit(1)
	}
}

// reap waits for all children and orphans. child is the process id of the supervisor. When the supervisor ends, reap
// ends this process.
func reap(child int) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the node's processes: %w", err)
		}
		if pid == child {
			os.Exit(max(1, status.ExitStatus())) // the supervisor never ends with success
		}
	}
}
