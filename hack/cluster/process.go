// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// logTail is the maximum number of bytes that Log and Logs read from the end of a log.
const logTail = 64 << 10

// Command is a program for StartProcess to run.
type Command struct {
	// Name is the name of the process in errors.
	Name string
	// Path is the program's file.
	Path string
	// Args are the program's arguments, without its name.
	Args []string
	// Env has additional variables. The program inherits this process's variables, except USELESS_*.
	Env []string
	// Dir is the working directory; empty means this process's own.
	Dir string
	// Log is the file to which the program's output is appended.
	Log string
}

// Process is a running program. The caller of StartProcess must stop it. On Linux, the kernel kills it if its parent
// process ends.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// StartProcess starts a program in its own process group. So Ctrl-C in a terminal reaches only this process, which can
// stop its programs in the correct order.
func StartProcess(c Command) (*Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer log.Close()

	cmd := exec.Command(c.Path, c.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
	cmd.Env = append(environment(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	p := &Process{name: c.Name, log: c.Log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that started the program ends, even if this
		// process continues (golang.org/issue/27505). So this thread must not end before the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	return p, nil
}

// environment returns this process's environment without GOGC and the variables USELESS_*. The Makefile sets GOGC for
// Go's tools and the tests only. An operator would read flags from USELESS_*.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "GOGC=") || strings.HasPrefix(variable, "USELESS_")
	})
}

// Name returns the name of the process in errors.
func (p *Process) Name() string { return p.name }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns an error with the exit status and the last lines of the log. It returns nil before the process has ended,
// and after exit status 0.
func (p *Process) Err() error {
	if !isDone(p.done) || p.err == nil {
		return nil
	}
	return p.ended()
}

// ended returns an error for a process that should still run. It returns an error even after exit status 0.
func (p *Process) ended() error {
	err := p.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s: %w; the end of its log:\n%s", p.name, err, p.quoteLog())
}

// Signal sends a signal to the process. It does nothing if the process has ended.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Kill sends SIGKILL to the process and its children, and waits until the process has ended. If the process has already
// ended, Kill does nothing.
func (p *Process) Kill() {
	if !isDone(p.done) {
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // the whole group
	}
	<-p.done
}

// Stop sends SIGTERM, and SIGKILL after the grace period. It waits until the process has ended.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
}

// Log returns the last 64 KiB of the process's output.
func (p *Process) Log() string { return tail(p.log, logTail) }

// quoteLog returns the last lines of the log, indented for an error.
func (p *Process) quoteLog() string {
	const lines = 15
	all := strings.Split(strings.TrimSpace(p.Log()), "\n")
	last := all[max(0, len(all)-lines):]
	return "\t" + strings.Join(last, "\n\t")
}

func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// tail returns the last size bytes of a file, or "" if it cannot be read.
func tail(path string, size int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(0, info.Size()-size)
	b := make([]byte, info.Size()-from)
	n, _ := f.ReadAt(b, from)
	return string(b[:n])
}
