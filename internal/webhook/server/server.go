// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server serves the operator's webhooks to clients that are not authenticated. It limits their connections,
// headers, requests and time. When it stops, it drains its connections so that no call fails.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// Limits of a server. By default, an API server sends at most 600 requests at the same time. Each needs a few hundred
// bytes of headers, and the API server waits at most 30 s for the answer. It closes a connection that is idle for 90 s.
// The server must not close the connection earlier, because a request that is sent at that moment would fail.
const (
	maxConnections  = 800
	maxHeaderBytes  = 16 << 10
	headerTimeout   = 10 * time.Second // includes the TLS handshake
	requestTimeout  = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 4 * time.Second // shorter than the manager's GracefulShutdownTimeout
)

// Server is controller-runtime's webhook server with limits.
type Server struct {
	ctrlwebhook.Server // has the handlers, and is never started
	options            ctrlwebhook.Options
	draining           <-chan struct{}
	requests           *atomic.Int64 // being served
}

// New returns a Server. After draining is closed, the server closes each connection with its next answer. Otherwise the
// server could close a connection at the moment when the API server sends a call on it. That call would fail.
func New(options ctrlwebhook.Options, draining <-chan struct{}) Server {
	return Server{ctrlwebhook.NewServer(options), options, draining, &atomic.Int64{}}
}

// Register overrides the method of controller-runtime's server.
func (s Server) Register(path string, hook http.Handler) {
	s.Server.Register(path, s.handler(hook))
}

func (s Server) handler(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		defer s.requests.Add(-1)
		select {
		case <-s.draining:
			w.Header().Set("Connection", "close")
		default:
		}
		hook.ServeHTTP(w, r)
	})
}

// Start overrides the method of controller-runtime's server.
func (s Server) Start(ctx context.Context) error {
	config, err := s.tlsConfig(ctx)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.address())
	if err != nil {
		return err
	}
	log.FromContext(ctx).Info("Serving webhooks", "address", listener.Addr().String())
	return s.serve(ctx, tls.NewListener(netutil.LimitListener(listener, maxConnections), config))
}

func (s Server) address() string {
	return net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
}

func (s Server) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s.WebhookMux(),
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
	}
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		s.shutdown(context.WithoutCancel(ctx), server)
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped
	return nil
}

// shutdown waits for requests, but not for connections without a request. API servers keep such connections in reserve.
// http.Server waits until they are 5 s old (https://go.dev/issue/22682). That would delay the next leader by the same
// time.
func (s Server) shutdown(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	for busy := true; busy && ctx.Err() == nil; {
		busy = s.requests.Load() > 0 // if none is left, the last answers are written during the next step
		step, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		_ = server.Shutdown(step)
		cancel()
	}
	_ = server.Close()
}

// tlsConfig returns a configuration with the certificate source of the options. If there is none, it uses the
// certificate in the folder of the options, and loads it again when the files change.
func (s Server) tlsConfig(ctx context.Context) (*tls.Config, error) {
	config := &tls.Config{}
	for _, option := range s.options.TLSOpts {
		option(config)
	}
	if config.GetCertificate != nil {
		return config, nil
	}
	folder := s.options.CertDir
	watcher, err := certwatcher.New(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return nil, err
	}
	config.GetCertificate = watcher.GetCertificate
	go func() {
		if err := watcher.Start(ctx); err != nil {
			log.FromContext(ctx).Error(err, "Cannot watch the webhooks' certificate")
		}
	}()
	return config, nil
}

// StartedChecker overrides the method of controller-runtime's server.
func (s Server) StartedChecker() healthz.Checker {
	// The check only needs to connect. It cannot verify the certificate, because the certificate is for other names.
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	return func(request *http.Request) error {
		connection, err := dialer.DialContext(request.Context(), "tcp", s.address())
		if err != nil {
			return fmt.Errorf("the webhooks are not reachable: %w", err)
		}
		return connection.Close()
	}
}
