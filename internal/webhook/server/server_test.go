// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"
)

// realClock reads the fake time inside synctest.Test.
var realClock clock.RealClock

// newServer returns a server with one webhook at /.
func newServer(running context.Context, hook http.HandlerFunc) Server {
	s := New(running, "", nil)
	s.Register("/", hook)
	return s
}

// pipeListener accepts connections from a channel.
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

// connection is a server's connection that reports when the server closes it.
type connection struct {
	net.Conn
	closed func()
}

func (c connection) Close() error {
	c.closed()
	return c.Conn.Close()
}

// connect returns a client's connection, and a channel that receives the time when the server closes it.
func (l pipeListener) connect() (net.Conn, <-chan time.Time) {
	client, server := net.Pipe()
	closed := make(chan time.Time, 1)
	l <- connection{server, sync.OnceFunc(func() { closed <- realClock.Now() })}
	return client, closed
}

// TestSlowClients connects clients that send one byte per second, do not read, or do nothing. The server must close
// each connection after the time limit for that case.
func TestSlowClients(t *testing.T) {
	const (
		head = "POST / HTTP/1.1\r\nHost: webhook\r\n"
		long = head + "Content-Length: 1000000\r\n\r\n"
	)
	for _, tt := range []struct {
		reason string
		start  string // sent at once
		drip   string // then sent byte by byte, repeatedly
		want   time.Duration
	}{
		{"no bytes", "", "", headerTimeout},
		{"an endless header", head, "X-A: b\r\n", headerTimeout},
		{"a missing body", long, "", requestTimeout},
		{"a slow body", long, "x", requestTimeout},
		{"a slow chunked body", head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", requestTimeout},
		{"an idle connection", head + "Content-Length: 0\r\n\r\n", "", idleTimeout},
		{"an answer that is not read", head + "X-Long: answer\r\nContent-Length: 0\r\n\r\n", "", requestTimeout},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				listener := make(pipeListener, 1)
				client, closed := listener.connect()
				s := newServer(t.Context(), func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					for range len(r.Header.Get("X-Long")) * 1000 {
						if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
							return
						}
					}
				})
				var all sync.WaitGroup
				all.Go(func() {
					if err := s.serve(ctx, listener); err != nil {
						t.Error(err)
					}
				})
				start := realClock.Now()
				all.Go(func() { drip(client, tt.start, tt.drip) })
				if !strings.Contains(tt.start, "X-Long") {
					all.Go(func() { _, _ = io.Copy(io.Discard, client) })
				}
				if took := (<-closed).Sub(start); took < tt.want-time.Second || took > tt.want+time.Second {
					t.Errorf("the server closed the connection after %s, want %s", took, tt.want)
				}
				cancel()
				all.Wait()
			})
		})
	}
}

// drip writes start, and then one byte of repeated per second, until writing fails.
func drip(to io.Writer, start, repeated string) {
	_, err := io.WriteString(to, start)
	for i := 0; err == nil && repeated != ""; i++ {
		realClock.Sleep(time.Second)
		_, err = io.WriteString(to, repeated[i%len(repeated):][:1])
	}
}

// TestLongHeaders sends headers below and above the size limit.
func TestLongHeaders(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	serving.Go(func() {
		if err := newServer(t.Context(), func(http.ResponseWriter, *http.Request) {}).serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	for size, want := range map[int]int{
		maxHeaderBytes / 2: http.StatusOK,
		maxHeaderBytes * 2: http.StatusRequestHeaderFieldsTooLarge,
	} {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String(), nil)
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

// TestDrain sends calls before and after the server starts to drain. The first call after the start of draining reuses
// the connection, and the next call needs a new one.
func TestDrain(t *testing.T) {
	running, drain := context.WithCancel(t.Context())
	defer drain()
	server := httptest.NewServer(newServer(running, func(http.ResponseWriter, *http.Request) {}))
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
		{"the first call opens a connection", false, false},
		{"the second call reuses it", false, true},
		{"the first call while the server drains reuses it, too", true, true},
		{"the next call opens a new connection, because the last answer closed the old one", false, false},
	} {
		if step.drain {
			drain()
		}
		if got := reused(); got != step.want {
			t.Errorf("%s: reused is %t, want %t", step.reason, got, step.want)
		}
	}
}

// TestShutdown stops a server that has a connection without a request. In two cases, a second connection has a request.
func TestShutdown(t *testing.T) {
	for _, tt := range []struct {
		reason  string
		request time.Duration // duration of a request, or 0 for none
		atMost  time.Duration
	}{
		{"a connection without a request is closed", 0, time.Second},
		{"a request gets its answer", 2 * time.Second, 3 * time.Second},
		{"the server ends a request that takes too long", time.Minute, shutdownTimeout + time.Second},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				listener := make(pipeListener, 2)
				idle, _ := listener.connect()
				busy, _ := listener.connect()
				s := newServer(t.Context(), func(_ http.ResponseWriter, r *http.Request) {
					select {
					case <-time.After(tt.request):
					case <-r.Context().Done():
					}
				})
				var all sync.WaitGroup
				all.Go(func() {
					if err := s.serve(ctx, listener); err != nil {
						t.Error(err)
					}
				})
				var answer []byte
				if tt.request > 0 {
					all.Go(func() {
						_, _ = io.WriteString(busy, "POST / HTTP/1.1\r\nHost: webhook\r\nContent-Length: 0\r\n\r\n")
						answer, _ = io.ReadAll(busy)
					})
				}
				synctest.Wait()
				start := realClock.Now()
				cancel()
				if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("a client without a request reads %v, want the end of the connection", err)
				}
				all.Wait()
				if took := realClock.Since(start); took > tt.atMost {
					t.Errorf("the shutdown took %s, want at most %s", took, tt.atMost)
				}
				want := tt.request > 0 && tt.request < shutdownTimeout
				if got := strings.HasPrefix(string(answer), "HTTP/1.1 200"); got != want {
					t.Errorf("got the answer %q, want an answer: %t", answer, want)
				}
			})
		})
	}
}

// TestLargeReviews sends more large reviews than there are slots. No review ends by itself, so the server must end each
// review after reviewTimeout. A small review must not wait.
func TestLargeReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var serving atomic.Int64
		hook := LimitReviews(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.ContentLength > LargeBytes {
				serving.Add(1)
				<-r.Context().Done()
			}
		}), semaphore.NewWeighted(MaxLarge))
		call := func(length int64) int {
			recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(""))
			request.ContentLength = length
			hook.ServeHTTP(recorder, request)
			return recorder.Code
		}
		start := realClock.Now()
		var all sync.WaitGroup
		for range MaxLarge + 3 {
			all.Go(func() { call(LargeBytes + 1) })
		}
		synctest.Wait()
		if got := serving.Load(); got != MaxLarge {
			t.Errorf("%d large reviews are served at the same time, want %d", got, MaxLarge)
		}
		if code := call(LargeBytes); code != http.StatusOK || realClock.Since(start) > 0 {
			t.Errorf("a small review got status %d after %s", code, realClock.Since(start))
		}
		all.Wait()
		if took := realClock.Since(start); took != reviewTimeout {
			t.Errorf("the last review ended after %s, want %s", took, reviewTimeout)
		}
	})
}
