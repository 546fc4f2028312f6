// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lock is a lock on a file, which contains the process id of the holder. The command down stops the holder to get the
// lock. The holder keeps the lock while the file is open. A child that inherits the open file also keeps the lock.
type lock struct {
	path string
	file *os.File
}

// acquire locks the file and writes the id of this process into it. If another process has the lock, acquire returns
// the id of that process. Otherwise it returns 0.
func (l *lock) acquire() (holder int, err error) {
	if err := l.open(); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil || holder != 0 {
			l.release()
		}
	}()
	if err := l.gate(unix.LOCK_EX); err != nil {
		return 0, err
	}
	err = unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return l.read()
	}
	if err != nil {
		return 0, fmt.Errorf("lock %s: %w", l.path, err)
	}
	return 0, errors.Join(l.setHolder(os.Getpid()), l.gate(unix.LOCK_UN))
}

// gate takes (LOCK_EX) or releases (LOCK_UN) a second lock on the file, which is held only for a short time. It makes
// the check of the first lock and the access to the process id atomic. Without it, a reader could get the id of a
// former holder. That id may belong to an unrelated process now.
func (l *lock) gate(how int) error {
	for {
		err := unix.Flock(int(l.file.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", l.path, err)
		}
	}
}

// wait acquires the lock as soon as it is free.
func (l *lock) wait(ctx context.Context) error {
	for {
		holder, err := l.acquire()
		if err != nil || holder == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// holder returns the id of the process that holds the lock, or 0. It does not take the lock, so a concurrent acquire
// does not fail because of it.
func (l *lock) holder() (int, error) {
	if err := l.open(); err != nil {
		return 0, err
	}
	defer l.release()
	if err := l.gate(unix.LOCK_EX); err != nil {
		return 0, err
	}
	found := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_GETLK, &found); err != nil {
		return 0, fmt.Errorf("check the lock %s: %w", l.path, err)
	}
	if found.Type == unix.F_UNLCK {
		return 0, nil
	}
	return l.read()
}

func (l *lock) open() (err error) {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// release closes the file. If a child process has inherited the open file, the lock remains.
func (l *lock) release() { _ = l.file.Close() }

// setHolder writes pid into the file as the id of the holder.
func (l *lock) setHolder(pid int) error {
	// The width is fixed, so no digit of a longer earlier id remains.
	if _, err := l.file.WriteAt(fmt.Appendf(nil, "%10d\n", pid), 0); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	return nil
}

func (l *lock) read() (int, error) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, 64))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", l.path, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", l.path, err)
	}
	return pid, nil
}
