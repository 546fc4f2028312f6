// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server serves the operator's webhooks to clients that are not authenticated. It limits their connections,
// headers, requests and time. When it stops, it drains its connections so that no call fails.
package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/semaphore"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

const (
	// By default, an API server sends at most 600 requests at the same time. Each needs a few hundred bytes of headers.
	maxConnections = 800
	maxHeaderBytes = 16 << 10
	headerTimeout  = 10 * time.Second // also limits the TLS handshake

	// The API server waits at most 30 s for an answer. It closes a connection that is idle for 90 s. This server must
	// not close an idle connection earlier, because a request that the API server sends at that moment would fail.
	requestTimeout = 30 * time.Second
	idleTimeout    = 2 * time.Minute

	reviewTimeout   = 5 * time.Second // equals timeoutSeconds in the markers of the admission webhooks
	shutdownTimeout = 4 * time.Second // shorter than the manager's GracefulShutdownTimeout
	shutdownStep    = 200 * time.Millisecond

	// LargeBytes is a size in bytes. An object or a review above this size needs one of MaxLarge slots. Memory holds
	// several copies of such an object, and the memory limit of the container is 256 MiB. A Machine with 1,000 switches
	// has a tenth of this size.
	LargeBytes = 64 << 10
	// MaxLarge is the number of slots. The admission webhooks share one set of slots, and the conversion webhook has
	// another set.
	MaxLarge = 2
)

// Server is controller-runtime's webhook server with limits.
type Server struct {
	ctrlwebhook.Server // has the handlers, and is never started
	address            string
	tls                *tls.Config
	running            context.Context
	requests           *atomic.Int64 // the number of requests in progress
}

// New returns a Server. After the context "running" is canceled, the server closes each connection with its next
// answer. Otherwise it could close a connection at the moment when the API server sends a request on it. That request
// would fail.
func New(running context.Context, address string, config *tls.Config) Server {
	return Server{ctrlwebhook.NewServer(ctrlwebhook.Options{}), address, config, running, &atomic.Int64{}}
}

// ServeHTTP implements http.Handler.
func (s Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	defer s.requests.Add(-1)
	if s.running.Err() != nil {
		w.Header().Set("Connection", "close")
	}
	s.WebhookMux().ServeHTTP(w, r)
}

// Start overrides the method of controller-runtime's server. It serves until the context is canceled, and then drains
// the connections.
func (s Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	log.FromContext(ctx).Info("Serving webhooks", "address", listener.Addr().String())
	return s.serve(ctx, tls.NewListener(netutil.LimitListener(listener, maxConnections), s.tls))
}

func (s Server) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		s.shutdown(server)
		return nil
	}
}

// shutdown waits for requests in progress, but not for connections on which no request was ever sent. API servers open
// such connections for later requests. http.Server would wait until they are 5 s old (https://go.dev/issue/22682), and
// the next leader would start later.
func (s Server) shutdown(server *http.Server) {
	for left, busy := shutdownTimeout, true; busy && left > 0; left -= shutdownStep {
		busy = s.requests.Load() > 0 // if false, this last step waits until the answers are sent
		ctx, cancel := context.WithTimeout(context.Background(), shutdownStep)
		_ = server.Shutdown(ctx)
		cancel()
	}
	_ = server.Close()
}

// StartedChecker overrides the method of controller-runtime's server.
func (s Server) StartedChecker() healthz.Checker {
	// The check only needs to connect. It cannot verify the certificate, because the certificate is not for this
	// address.
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	return func(request *http.Request) error {
		connection, err := dialer.DialContext(request.Context(), "tcp", s.address)
		if err != nil {
			return fmt.Errorf("the webhooks are not reachable: %w", err)
		}
		return connection.Close()
	}
}

// LimitReviews returns hook with limits: it ends each review after reviewTimeout. A review above LargeBytes waits for a
// slot of the semaphore large.
func LimitReviews(hook http.Handler, large *semaphore.Weighted) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
		defer cancel()
		deadline, _ := ctx.Deadline()
		_ = http.NewResponseController(w).SetReadDeadline(deadline) // for a client that never completes the body
		if r.ContentLength < 0 || r.ContentLength > LargeBytes {    // the API server always sends the length
			if large.Acquire(ctx, 1) != nil {
				http.Error(w, "too many large reviews at the same time", http.StatusServiceUnavailable)
				return
			}
			defer large.Release(1)
		}
		hook.ServeHTTP(w, r.WithContext(ctx))
	})
}
