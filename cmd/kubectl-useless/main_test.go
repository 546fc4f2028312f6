// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestMain runs the plugin instead of the tests if the environment variable RUN_PLUGIN is set.
func TestMain(m *testing.M) {
	if os.Getenv("RUN_PLUGIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestInterrupt interrupts the plugin while it waits for an API server that does not answer.
func TestInterrupt(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	plugin := exec.Command(os.Args[0], "flip", "machine-1", "--server", "http://"+server.Addr().String(),
		"--kubeconfig", os.DevNull, "--cache-dir", t.TempDir())
	plugin.Env = append(os.Environ(), "RUN_PLUGIN=1")
	if err := plugin.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Accept(); err != nil { // the plugin waits for an answer
		t.Fatal(err)
	}
	if err := plugin.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(10*time.Second, func() { _ = plugin.Process.Kill() })
	defer timer.Stop()
	var exit *exec.ExitError
	if err := plugin.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != os.Interrupt {
		t.Errorf("the plugin ended with %v, want the signal interrupt", err)
	}
}

func TestVersion(t *testing.T) {
	plugin := exec.Command(os.Args[0], "--version")
	plugin.Env = append(os.Environ(), "RUN_PLUGIN=1")
	if output, err := plugin.Output(); err != nil || string(output) != version+"\n" {
		t.Errorf("got %q and error %v, want the version %q", output, err, version)
	}
}
