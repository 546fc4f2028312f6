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

// initCommand is the node's first process: it has the lock, and with it the kernel ends all others of the node.
const initCommand = "init"

// lockDescriptor is where the first process finds the lock.
const lockDescriptor = 3

// exitTerminated is how shells report the end of a process by SIGTERM.
const exitTerminated = 128 + int(unix.SIGTERM)

// runInit moves this process to the node's cgroups and starts the one that does everything else: only a child can have
// a cgroup namespace that begins there. Then it does what the first process of every system does.
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
	// Only the child reports from here on: the reader has to see its end of the pipe.
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Dup3(int(null.Fd()), 1, 0), unix.Dup3(int(null.Fd()), 2, 0)); err != nil {
		return err
	}
	go stayWithStarter()
	return reap(cmd.Process.Pid)
}

// stayWithStarter ends the node with the process that starts it, unless that one lets go.
func stayWithStarter() {
	if n, _ := os.Stdin.Read(make([]byte, 1)); n == 0 {
		os.Exit(1)
	}
}

// reap takes note of the end of every orphan, and ends with the child.
func reap(child int) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the node's processes: %w", err)
		}
		if pid == child {
			os.Exit(max(1, status.ExitStatus())) // it does not end by itself
		}
	}
}
