// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
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
