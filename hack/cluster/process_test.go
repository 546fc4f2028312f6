// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// run starts a shell script and waits until its log is not empty.
func run(t *testing.T, script string) *Process {
	t.Helper()
	p, err := StartProcess(Command{
		Name: "the script",
		Path: "/bin/sh",
		Args: []string{"-c", script},
		Env:  []string{"GREETING=hello", "USELESS_OWN=own"},
		Log:  filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	await(t, "output", func() bool { return p.Log() != "" })
	return p
}

func TestProcess(t *testing.T) {
	t.Setenv("USELESS_INHERITED", "inherited")
	t.Setenv("GOGC", "400")
	t.Setenv("HOME", "/home/user")
	for _, test := range []struct {
		reason string
		script string
		end    func(*Process)
		want   string // the error; empty for none
	}{{
		reason: "exit status 0 is no error",
		script: "echo $GREETING",
		end:    func(p *Process) { <-p.Done() },
	}, {
		reason: "a program inherits the environment, except GOGC and variables that begin with USELESS_",
		script: "echo $HOME $USELESS_OWN $USELESS_INHERITED$GOGC; exit 3",
		end:    func(p *Process) { <-p.Done() },
		want:   "the script: exit status 3; the end of its log:\n\t/home/user own",
	}, {
		reason: "the error of a failed program contains its output",
		script: "echo $GREETING; exit 3",
		end:    func(p *Process) { <-p.Done() },
		want:   "the script: exit status 3; the end of its log:\n\thello",
	}, {
		reason: "a stopped program has time to clean up",
		script: "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done",
		end:    func(p *Process) { p.Stop(time.Minute) },
	}, {
		reason: "a program that ignores SIGTERM is killed",
		script: "trap '' TERM; echo ready; while :; do sleep 0.05; done",
		end:    func(p *Process) { p.Stop(50 * time.Millisecond) },
		want:   "the script: signal: killed; the end of its log:\n\tready",
	}, {
		reason: "any signal can be sent",
		script: "trap 'exit 4' USR1; echo ready; while :; do sleep 0.05; done",
		end: func(p *Process) {
			_ = p.Signal(syscall.SIGUSR1)
			<-p.Done()
		},
		want: "the script: exit status 4; the end of its log:\n\tready",
	}} {
		t.Run(test.reason, func(t *testing.T) {
			p := run(t, test.script)
			test.end(p)
			got := ""
			if err := p.Err(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got error %q, want %q", got, test.want)
			}
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Errorf("a signal after the end: %v", err)
			}
		})
	}
}

// TestProcessErr checks that Err is nil while the process runs. After a kill, Err must wrap an exec.ExitError.
func TestProcessErr(t *testing.T) {
	p := run(t, "echo ready; exec sleep 600")
	if err := p.Err(); err != nil {
		t.Errorf("error of a running process: %v, want none", err)
	}
	p.Kill()
	if exit := (*exec.ExitError)(nil); !errors.As(p.Err(), &exit) {
		t.Errorf("error of a killed process: %v, want an exec.ExitError", p.Err())
	}
}

// TestKillEndsChildren checks that Kill also ends the child process of a program.
func TestKillEndsChildren(t *testing.T) {
	p := run(t, "sleep 600 & echo $! && wait")
	p.Kill()
	awaitGone(t, numbers(p.Log()))
}

// TestHoldPort checks that an ordinary listener cannot bind the held port.
func TestHoldPort(t *testing.T) {
	port, socket, err := holdPort()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(socket)
	if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		_ = l.Close()
		t.Errorf("another listener could bind the held port %d", port)
	} else if !strings.Contains(err.Error(), "address already in use") {
		t.Error(err)
	}
}
