// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// A proxy forwards TCP connections and injects network faults.
type proxy struct {
	listener net.Listener

	mu          sync.Mutex
	target      string // address that the proxy connects to; if empty, it resets new connections
	delay       time.Duration
	connections map[*connection]bool
}

// A connection is a pair of TCP connections: from the client to the proxy, and from the proxy to the server.
type connection struct {
	client, server net.Conn
	lost           chan struct{} // closed when the proxy begins to drop all bytes; the two connections stay open
}

func startProxy() (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, connections: map[*connection]bool{}}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.accept(client)
		}
	}()
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// to sets the target of new connections. If target is empty, the proxy resets new connections. If the target changes,
// the proxy resets all open connections.
func (p *proxy) to(target string) {
	p.mu.Lock()
	old := p.target
	p.target = target
	p.mu.Unlock()
	if old != target {
		p.reset()
	}
}

// slow delays all bytes by delay, and about one read in ten by twice the delay.
func (p *proxy) slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// reset resets all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.connections {
		c.reset()
	}
	clear(p.connections)
}

// lose drops all further bytes of the open connections. It does not close the connections, so neither end gets an
// error.
func (p *proxy) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.connections {
		select {
		case <-c.lost:
		default:
			close(c.lost)
		}
	}
}

func (p *proxy) stop() {
	_ = p.listener.Close()
	p.reset()
}

func (p *proxy) accept(client net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	c := &connection{client: client, lost: make(chan struct{})}
	server, err := net.Dial("tcp", target)
	if err != nil {
		c.reset()
		return
	}
	c.server = server
	p.mu.Lock()
	moved := p.target != target // p.to ran before c was in p.connections, so it has not reset c
	if !moved {
		p.connections[c] = true
	}
	p.mu.Unlock()
	if moved {
		c.reset()
		return
	}
	go p.carry(c, client, server)
	go p.carry(c, server, client)
}

// carry copies bytes in one direction until either end closes or the connection is lost.
func (p *proxy) carry(c *connection, from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if delay := p.latency(); delay > 0 {
			<-time.After(delay)
		}
		select {
		case <-c.lost:
			return
		default:
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = c.client.Close()
	_ = c.server.Close()
	p.mu.Lock()
	delete(p.connections, c)
	p.mu.Unlock()
}

func (p *proxy) latency() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rand.IntN(10) == 0 {
		return 2 * p.delay
	}
	return p.delay
}

// reset closes both ends with a TCP reset, so that the client and the server get an error.
func (c *connection) reset() {
	for _, end := range []net.Conn{c.client, c.server} {
		if end, ok := end.(*net.TCPConn); ok {
			_ = end.SetLinger(0)
			_ = end.Close()
		}
	}
}

// TestProxy checks each fault that the proxy can inject.
func TestProxy(t *testing.T) {
	p, err := startProxy()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	const soon, never = 10 * time.Second, 100 * time.Millisecond

	if c, err := net.Dial("tcp", p.address()); err == nil && answered(c, soon) == nil {
		t.Error("a connection without a target was answered")
	}
	p.to(startEcho(t))
	c := dial()
	if err := answered(c, soon); err != nil {
		t.Error("a connection was not answered:", err)
	}
	p.slow(50 * time.Millisecond)
	start := time.Now()
	if err := answered(c, soon); err != nil || time.Since(start) < 100*time.Millisecond {
		t.Errorf("a slow connection was answered after %s: %v", time.Since(start), err)
	}
	p.slow(0)
	p.lose()
	if err := answered(c, never); !isTimeout(err) {
		t.Errorf("a lost connection: got error %v, want a timeout", err)
	}
	other := dial()
	if err := answered(other, soon); err != nil {
		t.Error("another connection was not answered:", err)
	}
	p.reset()
	if err := answered(other, soon); err == nil || isTimeout(err) {
		t.Errorf("a connection that was reset: got error %v, want an immediate error", err)
	}
}

// startEcho starts an echo server and returns its address.
func startEcho(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return listener.Addr().String()
}

// answered sends a byte and waits for a byte. It returns an error if no byte arrives within the time limit.
func answered(c net.Conn, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("a")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
