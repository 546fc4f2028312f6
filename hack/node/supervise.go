// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"container.training/useless/hack/cluster"
)

const (
	// superviseCommand is the command of the process that runs all programs of the node.
	superviseCommand = "supervise"
	// readyFile is the name of a file that exists when the node is ready.
	readyFile = "ready"
	// controlSocket is the socket for requests to restart a program.
	controlSocket = "control.sock"
)

// restartDelay is the pause before the supervisor restarts a program that has ended.
const restartDelay = time.Second

// supervisor runs the programs of a node.
type supervisor struct {
	node     *node
	services []*service
	started  time.Time
}

// service is a program of the node with its process.
type service struct {
	program

	process *cluster.Process
	kill    chan chan error // receives restart requests; a request is a channel for the result
}

// supervise starts the node and keeps it running.
func supervise(ctx context.Context, n *node) error {
	s := &supervisor{node: n, started: time.Now()}
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.detach(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// start starts the parts of the node one after the other.
func (s *supervisor) start(ctx context.Context) error {
	if err := enter(s.node.dir); err != nil {
		return err
	}
	s.reportReady("namespaces")
	admin, err := writeFiles(s.node)
	if err != nil {
		return err
	}
	if err := serveImages(s.node); err != nil {
		return err
	}
	if err := pushImages(ctx, s.node, s.reportReady); err != nil {
		return err
	}
	for _, p := range programs(s.node, admin) {
		if err := s.startService(ctx, p); err != nil {
			return err
		}
		s.reportReady(p.name)
	}
	if err := s.listen(ctx, admin.apiServer); err != nil {
		return err
	}
	if err := installMetrics(ctx, s.node, admin.config); err != nil {
		return err
	}
	return installOLM(ctx, s.node, admin.config, s.reportReady)
}

// reportReady prints a progress line: the time since the start, and the part that is ready.
func (s *supervisor) reportReady(part string) {
	fmt.Printf("%5.1f s  %s\n", time.Since(s.started).Seconds(), part)
}

// startService starts a program and waits until it is ready. It fails if any program of the node ends.
func (s *supervisor) startService(ctx context.Context, p program) error {
	sv := &service{program: p, kill: make(chan chan error)}
	s.services = append(s.services, sv)
	if err := s.run(sv); err != nil {
		return err
	}
	var processes []*cluster.Process
	for _, sv := range s.services {
		processes = append(processes, sv.process)
	}
	return cluster.Await(ctx, processes, p.check)
}

func (s *supervisor) run(sv *service) error {
	process, err := cluster.StartProcess(cluster.Command{
		Name: sv.name,
		Path: s.node.path("bin", sv.name),
		Args: sv.args,
		Env: append([]string{"PATH=" + s.node.path("bin") + ":" + systemPath, "TMPDIR=" + s.node.path("tmp")},
			cluster.LessGC...),
		Dir: s.node.dir,
		Log: s.node.path("log", sv.name+".log"),
	})
	if err != nil {
		return err
	}
	sv.process = process
	return nil
}

// detach writes readyFile and closes the pipe to the process that started the node. After that, output goes to a log.
func (s *supervisor) detach() error {
	log, err := os.OpenFile(s.node.path("log", "node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.node.path(readyFile), nil, 0o644); err != nil {
		return err
	}
	return errors.Join(unix.Dup3(int(log.Fd()), 1, 0), unix.Dup3(int(log.Fd()), 2, 0))
}

// listen handles restart requests, and restarts programs that have ended.
func (s *supervisor) listen(ctx context.Context, usable check) error {
	if err := os.Chdir(s.node.dir); err != nil { // the path of a socket has a length limit
		return err
	}
	listener, err := net.Listen("unix", controlSocket)
	if err != nil {
		return fmt.Errorf("listen for restart requests: %w", err)
	}
	for _, sv := range s.services {
		go s.keepRunning(ctx, sv, usable)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.handleRestart(conn)
		}
	}()
	return nil
}

// keepRunning restarts a program on request, and after the program has ended. A request succeeds when the program is
// ready and usable returns nil.
func (s *supervisor) keepRunning(ctx context.Context, sv *service, usable check) {
	for ctx.Err() == nil {
		select {
		case <-sv.process.Done():
			fmt.Printf("%s has ended (%v): restarting it\n", sv.name, sv.process.Err())
			time.Sleep(restartDelay)
			if err := s.run(sv); err != nil {
				fmt.Println(err)
			}
		case done := <-sv.kill:
			sv.process.Kill()
			err := s.run(sv)
			// While etcd restarts, the API server is not ready either.
			for _, check := range []check{sv.check, usable} {
				if err == nil {
					err = cluster.Await(ctx, []*cluster.Process{sv.process}, check)
				}
			}
			done <- err
		}
	}
}

// handleRestart reads the name of a program from the connection and restarts the program. If the restart fails, it
// writes the error to the connection. Otherwise it writes nothing.
func (s *supervisor) handleRestart(conn net.Conn) {
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	name := strings.TrimSpace(line)
	i := slices.IndexFunc(s.services, func(sv *service) bool { return sv.name == name })
	if i < 0 {
		var names []string
		for _, sv := range s.services {
			names = append(names, sv.name)
		}
		fmt.Fprintf(conn, "the node has no program %q; it has %s", name, strings.Join(names, ", "))
		return
	}
	done := make(chan error)
	s.services[i].kill <- done
	if err := <-done; err != nil {
		fmt.Fprint(conn, err)
	}
}
