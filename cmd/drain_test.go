// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"
)

// TestDrain has one client, whose connection lives until the server drains.
func TestDrain(t *testing.T) {
	draining := make(chan struct{})
	hook := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(drainingServer{draining: draining}.handler(hook))
	defer server.Close()
	reused := func() (reused bool) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		return reused
	}
	for _, step := range []struct {
		reason string
		drain  bool
		want   bool
	}{
		{"the first call needs a connection", false, false},
		{"which the second one finds open", false, true},
		{"as does one that comes when the server drains", true, true},
		{"but it was the last one", false, false},
	} {
		if step.drain {
			close(draining)
		}
		if got := reused(); got != step.want {
			t.Errorf("%s: got a connection that was open: %t, want %t", step.reason, got, step.want)
		}
	}
}

func TestDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		ctx := delayed(parent, 3*time.Second)
		cancel()
		start := time.Now()
		<-ctx.Done()
		if got := time.Since(start); got != 3*time.Second {
			t.Errorf("ended %s after its parent, want 3s", got)
		}
	})
}

// TestShutdownWaitsForNobody has clients that have connected and asked nothing yet, as API servers do: one before the server
// shuts down, and one at that very moment.
func TestShutdownWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, connection := net.Pipe()
		listener := make(pipeListener, 1)
		server := limited(t.Context(), http.NotFoundHandler())
		go func() { _ = server.Serve(listener) }()
		listener <- connection
		synctest.Wait()

		start := time.Now()
		if err := server.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %s", took)
		}
		ended(t, client)

		client, connection = net.Pipe()
		go server.ConnState(connection, http.StateNew)
		ended(t, client)
	})
}

// ended fails the test unless the other end of a connection is closed.
func ended(t *testing.T, client net.Conn) {
	t.Helper()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the client reads %v, want the end of the connection", err)
	}
}
