// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLock acquires a lock, requests it again, and reads its holder after each step.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache", "lock")
	one, another, third := &lock{path: path}, &lock{path: path}, &lock{path: path}
	check := func(when string, want int) {
		t.Helper()
		if got, err := third.holder(); err != nil || got != want {
			t.Errorf("holder %s: got %d, error %v, want %d", when, got, err, want)
		}
	}
	check("of a new lock", 0)
	if holder, err := one.acquire(); holder != 0 || err != nil {
		t.Fatalf("acquire a free lock: got holder %d, error %v", holder, err)
	}
	check("after the first lock is acquired", os.Getpid())
	if err := one.setHolder(4711); err != nil {
		t.Error(err)
	}
	if holder, err := another.acquire(); holder != 4711 || err != nil {
		t.Errorf("acquire a taken lock: got holder %d, error %v, want 4711", holder, err)
	}
	one.release()
	check("after the first lock is released", 0)
	if err := another.wait(t.Context()); err != nil {
		t.Error(err)
	}
	check("after the second lock is acquired", os.Getpid())
	another.release()
}

// TestLockFormerHolder acquires and releases a lock repeatedly. While the lock is free, the file contains the id of a
// former holder. A concurrent reader must never get that id.
func TestLockFormerHolder(t *testing.T) {
	const former = 4711
	path := filepath.Join(t.TempDir(), "lock")
	one, another, late := &lock{path: path}, &lock{path: path}, &lock{path: path}
	if err := late.open(); err != nil {
		t.Fatal(err)
	}
	defer late.release()
	write := func(pid int) { // as in a file that a former holder left
		if err := errors.Join(late.gate(unix.LOCK_EX), late.setHolder(pid), late.gate(unix.LOCK_UN)); err != nil {
			t.Error(err)
		}
	}
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(func() {
		defer close(stop)
		for range 2000 {
			if holder, err := one.acquire(); holder != 0 || err != nil {
				t.Errorf("acquire a free lock: got holder %d, error %v", holder, err)
				return
			}
			one.release()
			write(former)
		}
	})
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if holder, err := another.holder(); err != nil || holder == former {
				t.Errorf("got holder %d, error %v, want no former holder", holder, err)
			}
		}
	})
	group.Wait()
}

// TestEnd ends a process that handles SIGTERM, and a process that ignores SIGTERM. A starting node ignores it.
func TestEnd(t *testing.T) {
	for _, test := range []struct {
		reason string
		script string
		want   string
	}{{
		reason: "SIGTERM ends a process that handles it",
		script: "trap 'echo ended; exit' TERM; echo ready; read nothing",
		want:   "ended\n",
	}, {
		reason: "SIGKILL ends a process that ignores SIGTERM",
		script: "trap '' TERM; echo ready; read nothing",
	}} {
		t.Run(test.reason, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", test.script)
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Wait() }()
			out := bufio.NewReader(stdout)
			if line, err := out.ReadString('\n'); line != "ready\n" {
				t.Errorf("got %q, error %v", line, err)
			}
			grace := downTimeout
			if test.want == "" {
				grace = time.Millisecond
			}
			if err := end(t.Context(), cmd.Process.Pid, grace); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(out); string(got) != test.want || err != nil {
				t.Errorf("got %q, error %v, want %q", got, err, test.want)
			}
		})
	}
}
