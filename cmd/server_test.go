// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeListener hands out the other ends of pipes.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	connection, open := <-l
	if !open {
		return nil, net.ErrClosed
	}
	return connection, nil
}

func (l pipeListener) Close() error   { close(l); return nil }
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestSlowClients has clients that send a byte a second, or read nothing, or do nothing at all. None is waited for any longer
// than it takes the API server to give up.
func TestSlowClients(t *testing.T) {
	const (
		head = "POST / HTTP/1.1\r\nHost: webhook\r\n"
		long = head + "Content-Length: 1000000\r\n\r\n"
	)
	for _, test := range []struct {
		reason string
		at     string // what the client sends at once
		drips  string // what it sends byte by byte, again and again
		want   time.Duration
	}{
		{"nothing is said", "", "", headerTimeout},
		{"a header never ends", head, "X-A: b\r\n", headerTimeout},
		{"a body does not come", long, "", requestTimeout},
		{"a body takes its time", long, "x", requestTimeout},
		{"pieces of a body take their time", head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", requestTimeout},
		{"nobody asks anything any more", head + "Content-Length: 0\r\n\r\n", "", idleTimeout},
		{"an answer is not read", head + "X-Talk: please\r\nContent-Length: 0\r\n\r\n", "", requestTimeout},
	} {
		t.Run(test.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, connection := net.Pipe()
				defer client.Close()
				listener, closed := make(pipeListener, 1), make(chan time.Time)
				listener <- connection
				server := limited(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					for range len(r.Header.Get("X-Talk")) * 1000 {
						if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
							return
						}
					}
				}))
				server.ConnState = func(_ net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						closed <- time.Now()
					}
				}
				go func() { _ = server.Serve(listener) }()
				defer server.Close()

				start := time.Now()
				var clients sync.WaitGroup
				clients.Go(func() { drip(client, test.at, test.drips) })
				if !strings.Contains(test.at, "X-Talk") {
					clients.Go(func() { _, _ = io.Copy(io.Discard, client) })
				}
				if took := (<-closed).Sub(start); took < test.want-time.Second || took > test.want+time.Second {
					t.Errorf("waited for %s, want %s", took, test.want)
				}
				clients.Wait()
			})
		})
	}
}

// drip sends a text, and then another one again and again, a byte a second.
func drip(to io.Writer, text, drips string) {
	_, err := io.WriteString(to, text)
	for i := 0; err == nil && drips != ""; i++ {
		time.Sleep(time.Second)
		_, err = io.WriteString(to, drips[i%len(drips):][:1])
	}
}

// TestLongHeaders sends more than the API server ever would.
func TestLongHeaders(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := limited(t.Context(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	for size, want := range map[int]int{
		maxHeaderBytes / 2: http.StatusOK,
		maxHeaderBytes * 2: http.StatusRequestHeaderFieldsTooLarge,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Pad", strings.Repeat("x", size))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != want {
			t.Errorf("%d bytes of headers: status %d, want %d: %v", size, response.StatusCode, want, err)
		}
	}
}
