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
	// superviseCommand is the process that runs all programs of the node.
	superviseCommand = "supervise"
	// readyFile is there when the node can be used.
	readyFile = "ready"
	// controlSocket is where the node is asked to restart a program.
	controlSocket = "control.sock"
)

// restartDelay is how long a program that ends by itself stays away.
const restartDelay = time.Second

// supervisor runs the programs of a node.
type supervisor struct {
	node     *node
	services []*service
	started  time.Time
}

// service is a program that runs as long as the node does.
type service struct {
	program

	process *cluster.Process
	kill    chan chan error // asks for a restart, and is told how it went
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

// start brings up one thing after the other.
func (s *supervisor) start(ctx context.Context) error {
	if err := enter(s.node.dir); err != nil {
		return err
	}
	s.say("namespaces")
	admin, err := writeFiles(s.node)
	if err != nil {
		return err
	}
	if err := serveImages(s.node); err != nil {
		return err
	}
	if err := pushImages(ctx, s.node, s.say); err != nil {
		return err
	}
	for _, p := range programs(s.node, admin) {
		if err := s.startService(ctx, p); err != nil {
			return err
		}
		s.say(p.name)
	}
	if err := s.listen(ctx, admin.apiServer); err != nil {
		return err
	}
	if err := installMetrics(ctx, s.node, admin.config); err != nil {
		return err
	}
	return installOLM(ctx, s.node, admin.config, s.say)
}

// say reports what is ready.
func (s *supervisor) say(what string) {
	fmt.Printf("%5.1f s  %s\n", time.Since(s.started).Seconds(), what)
}

// startService starts a program and waits until it can be used, or any program of the node has ended.
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
		Env:  []string{"PATH=" + s.node.path("bin") + ":" + systemPath, "TMPDIR=" + s.node.path("tmp")},
		Dir:  s.node.dir,
		Log:  s.node.path("log", sv.name+".log"),
	})
	if err != nil {
		return err
	}
	sv.process = process
	return nil
}

// detach lets go of whoever started the node; from here on there is only a log.
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

// listen restarts programs when it is asked to, and those that end by themselves.
func (s *supervisor) listen(ctx context.Context, usable check) error {
	if err := os.Chdir(s.node.dir); err != nil { // the path of a socket may not be long
		return err
	}
	listener, err := net.Listen("unix", controlSocket)
	if err != nil {
		return fmt.Errorf("listen for commands: %w", err)
	}
	for _, sv := range s.services {
		go s.keep(ctx, sv, usable)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.answer(conn)
		}
	}()
	return nil
}

// keep runs a program again whenever it has ended.
func (s *supervisor) keep(ctx context.Context, sv *service, usable check) {
	for ctx.Err() == nil {
		select {
		case <-sv.process.Done():
			fmt.Printf("%s has ended, and is started again (%v)\n", sv.name, sv.process.Err())
			time.Sleep(restartDelay)
			if err := s.run(sv); err != nil {
				fmt.Println(err)
			}
		case done := <-sv.kill:
			sv.process.Kill()
			err := s.run(sv)
			for _, check := range []check{sv.check, usable} { // an API server is without etcd, too, while etcd starts
				if err == nil {
					err = cluster.Await(ctx, []*cluster.Process{sv.process}, check)
				}
			}
			done <- err
		}
	}
}

// answer takes the name of a program to restart, and answers with what went wrong, or nothing.
func (s *supervisor) answer(conn net.Conn) {
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
		fmt.Fprintf(conn, "the node runs no %q; it runs %s", name, strings.Join(names, ", "))
		return
	}
	done := make(chan error)
	s.services[i].kill <- done
	if err := <-done; err != nil {
		fmt.Fprint(conn, err)
	}
}
