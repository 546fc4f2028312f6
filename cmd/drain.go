// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// delayed returns a context that ends some time after its parent: the time in which a replica that is to stop still
// serves, because clients learn of it later than it does.
func delayed(parent context.Context, delay time.Duration) context.Context {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	context.AfterFunc(parent, func() { time.AfterFunc(delay, cancel) })
	return ctx
}

// A drainingServer has its clients close their connections while it drains. The API server keeps connections to
// webhooks open, and a call that it sends on one at the moment at which a replica closes it fails.
type drainingServer struct {
	ctrlwebhook.Server
	draining <-chan struct{}
}

// Register overrides that of the webhook server.
func (s drainingServer) Register(path string, hook http.Handler) {
	s.Server.Register(path, s.handler(hook))
}

func (s drainingServer) handler(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.draining:
			w.Header().Set("Connection", "close")
		default:
		}
		hook.ServeHTTP(w, r)
	})
}

// freshConnections are those on which nothing was asked so far. API servers have such in reserve. A server that shuts down
// would wait until they are five seconds old (https://go.dev/issue/22682), which is as long as the manager waits, and another
// replica would lead that much later.
type freshConnections struct {
	mu      sync.Mutex
	all     map[net.Conn]bool
	closing bool
}

// note is told of every connection's state.
func (f *freshConnections) note(connection net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(f.all, connection)
	case f.closing:
		_ = connection.Close()
	default:
		if f.all == nil {
			f.all = map[net.Conn]bool{}
		}
		f.all[connection] = true
	}
}

// close closes those that there are, and those that come.
func (f *freshConnections) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closing = true
	for connection := range f.all {
		_ = connection.Close()
	}
}
