// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// logTail is how much of a log is shown, in bytes.
const logTail = 64 << 10

// Command says what StartProcess runs.
type Command struct {
	// Name is what errors call the process.
	Name string
	// Path is the program's file.
	Path string
	// Args are the program's arguments, without its name.
	Args []string
	// Env is added to this process's own environment.
	Env []string
	// Dir is the working directory; empty means this process's own.
	Dir string
	// Log is the file that the program's output is appended to.
	Log string
}

// Process is a running program. It does not outlive this one: who starts it stops it, and on Linux the kernel does so
// where this process is killed.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// StartProcess starts a program in a process group of its own, so that Ctrl-C in a terminal reaches only this process,
// which then stops its programs in the order they need.
func StartProcess(c Command) (*Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer log.Close()

	cmd := exec.Command(c.Path, c.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	p := &Process{name: c.Name, log: c.Log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that forked for the end of the parent (golang.org/issue/27505), and Go
		// ends idle threads as it likes: this one has to live as long as the program.
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

// Name is what errors call the process.
func (p *Process) Name() string { return p.name }

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the process ended, with the last lines of its log. It is nil before the end and after a successful one.
func (p *Process) Err() error {
	if !isDone(p.done) || p.err == nil {
		return nil
	}
	return p.ended()
}

// ended is the error for a process that should be running, and is not.
func (p *Process) ended() error {
	err := p.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s: %w; the end of its log:\n%s", p.name, err, p.quoteLog())
}

// Signal sends the process a signal; one that has ended gets none.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Kill ends the process at once, as a crash would, together with what it has started, and waits for its end.
func (p *Process) Kill() {
	if !isDone(p.done) {
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // the whole group
	}
	<-p.done
}

// Stop asks the process to end, kills it where it has not done so after the grace period, and waits for its end.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
}

// Log is the end of what the process has written, at most 64 KiB.
func (p *Process) Log() string { return tail(p.log, logTail) }

// quoteLog is the end of the log as a part of an error.
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

// tail is the end of a file, cut to size bytes; empty where it cannot be read.
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
