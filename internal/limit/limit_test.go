// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlots has one client ask for all of the slots: another one gets one at once.
func TestSlots(t *testing.T) {
	const n = 3
	for _, tt := range []struct {
		reason  string
		holders []string // addresses that ask for a slot, and keep it
		held    int
		next    string // who asks then
		waits   bool
	}{
		{"all are free", nil, 0, "10.0.0.1:1", false},
		{"a client has all but one, over several connections", []string{"10.0.0.1:1", "10.0.0.1:2"}, 2, "10.0.0.1:3", true},
		{"another one gets the last", []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"}, 2, "10.0.0.2:1", false},
		{"and of IPv6", []string{"[fd00::1]:1", "[fd00::1]:2", "[fd00::1]:3"}, 2, "[fd00::2]:1", false},
		{"two have all", []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"}, 3, "10.0.0.3:1", true},
		{"who has no address is one client, too", []string{"", ""}, 2, "", true},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := NewSlots(n)
				ctx, cancel := context.WithCancel(t.Context())
				for _, address := range tt.holders {
					go func() {
						if release, err := slots.Take(ctx, address); err == nil {
							<-ctx.Done()
							release()
						}
					}()
				}
				synctest.Wait()
				if got := len(slots.all); got != tt.held {
					t.Errorf("%d slots are taken, want %d", got, tt.held)
				}
				brief, stop := context.WithTimeout(ctx, time.Second)
				defer stop()
				release, err := slots.Take(brief, tt.next)
				if waits := errors.Is(err, context.DeadlineExceeded); waits != tt.waits {
					t.Errorf("waits: %t, want %t", waits, tt.waits)
				}
				if err == nil {
					release()
				}
				cancel()
				synctest.Wait()
				if len(slots.all) > 0 || len(slots.clients) > 0 {
					t.Errorf("when all are gone, %d slots are taken, and %d clients known", len(slots.all), len(slots.clients))
				}
			})
		})
	}
}

// TestPerClient has a client connect more often than it may: it is hung up on, until it has closed one of the others.
func TestPerClient(t *testing.T) {
	accepted := make(chan net.Conn, 10)
	l := PerClient(listenerOf(accepted), 2)
	connect := func(address string) *clientOf {
		c := &clientOf{address: address}
		accepted <- c
		return c
	}
	accept := func() net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	want := func(c net.Conn, address string) {
		t.Helper()
		if got := c.RemoteAddr().String(); got != address {
			t.Errorf("accepted %s, want %s", got, address)
		}
	}
	connect("10.0.0.1:1")
	connect("10.0.0.1:2")
	tooMany := connect("10.0.0.1:3")
	connect("10.0.0.2:1")
	first := accept()
	want(first, "10.0.0.1:1")
	want(accept(), "10.0.0.1:2")
	want(accept(), "10.0.0.2:1")
	if tooMany.closed != 1 {
		t.Errorf("the third of a client was closed %d times", tooMany.closed)
	}
	for range 2 { // as servers do
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}
	connect("10.0.0.1:4")
	connect("10.0.0.1:5")
	connect("10.0.0.2:2")
	want(accept(), "10.0.0.1:4")
	want(accept(), "10.0.0.2:2")
	close(accepted)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener that is closed: %v", err)
	}
}

// listenerOf accepts what comes out of a channel.
type listenerOf chan net.Conn

func (l listenerOf) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l listenerOf) Addr() net.Addr { return &net.TCPAddr{} }

func (l listenerOf) Close() error { return nil }

// clientOf is the connection of an address.
type clientOf struct {
	net.Conn

	address string
	closed  int
}

func (c *clientOf) RemoteAddr() net.Addr {
	address, _ := netip.ParseAddrPort(c.address)
	return net.TCPAddrFromAddrPort(address)
}

func (c *clientOf) Close() error {
	c.closed++
	return nil
}
