// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
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
