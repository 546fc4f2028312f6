// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package limit shares what there is little of among clients that nobody can trust. A client is known by its address.
package limit

import (
	"context"
	"net"
	"sync"
)

// Slots are how many calls may do something at the same time. No client has all of them, so that one that never gives its own
// back keeps nobody else waiting.
type Slots struct {
	all chan struct{}

	mu      sync.Mutex
	clients map[string]*client // that have a slot, or wait for one
}

type client struct {
	slots chan struct{}
	calls int
}

// NewSlots makes so many slots, of which there have to be two at least.
func NewSlots(n int) *Slots {
	return &Slots{all: make(chan struct{}, n), clients: map[string]*client{}}
}

// Take waits for a slot for a client, whose address is that of http.Request.RemoteAddr. It returns what gives the slot back, to
// be called once, or the error of a context that ends before.
func (s *Slots) Take(ctx context.Context, address string) (release func(), err error) {
	host := hostOf(address)
	own := s.enter(host)
	if err := take(ctx, own); err != nil {
		s.leave(host)
		return nil, err
	}
	if err := take(ctx, s.all); err != nil {
		<-own
		s.leave(host)
		return nil, err
	}
	return func() {
		<-s.all
		<-own
		s.leave(host)
	}, nil
}

func take(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enter returns the slots that a client may have.
func (s *Slots) enter(host string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[host]
	if c == nil {
		c = &client{slots: make(chan struct{}, cap(s.all)-1)}
		s.clients[host] = c
	}
	c.calls++
	return c.slots
}

// leave forgets a client that has no call.
func (s *Slots) leave(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[host].calls--; s.clients[host].calls == 0 {
		delete(s.clients, host)
	}
}

// hostOf is an address without its port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
