// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"net"
	"sync"
)

// A listener hangs up on clients that have as many connections as each may have.
type listener struct {
	net.Listener

	most int

	mu   sync.Mutex
	open map[string]int // connections of clients
}

// PerClient listens as another listener does, but closes a connection at once whose client has so many others.
func PerClient(l net.Listener, most int) net.Listener {
	return &listener{Listener: l, most: most, open: map[string]int{}}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := hostOf(accepted.RemoteAddr().String())
		if l.enter(host) {
			return &connection{Conn: accepted, leave: sync.OnceFunc(func() { l.leave(host) })}, nil
		}
		_ = accepted.Close()
	}
}

// enter reports whether a client may have one more connection, which then counts.
func (l *listener) enter(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[host] >= l.most {
		return false
	}
	l.open[host]++
	return true
}

func (l *listener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[host]--; l.open[host] == 0 {
		delete(l.open, host)
	}
}

// A connection counts until it is closed.
type connection struct {
	net.Conn

	leave func()
}

// Close implements net.Conn.
func (c *connection) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
