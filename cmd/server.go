// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/net/netutil"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"container.training/useless/internal/limit"
)

// What one client can take from the others, before anybody knows what it wants. API servers need a small part of it: as many
// connections as calls at a time, headers of some hundred bytes, and answers within 30 seconds, after which they give up. They
// close what they have not used for 90 seconds: a server that did so first could close what is just being used again.
const (
	maxConnections = 800
	maxOfOne       = 600 // of these, of one address; an API server has no more calls at a time, unless it is told otherwise
	maxHeaderBytes = 16 << 10
	headerTimeout  = 10 * time.Second // also of the TLS handshake
	requestTimeout = 30 * time.Second
	idleTimeout    = 2 * time.Minute
)

// A limitedServer serves webhooks to clients that nobody can trust. controller-runtime's lets each have 1 MiB of headers,
// and take as long as it likes for the rest.
type limitedServer struct {
	ctrlwebhook.Server // has the handlers, and is not started
	options            ctrlwebhook.Options
}

func newLimitedServer(options ctrlwebhook.Options) limitedServer {
	return limitedServer{ctrlwebhook.NewServer(options), options}
}

func (s limitedServer) address() string {
	return net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
}

// Start overrides that of the webhook server.
func (s limitedServer) Start(ctx context.Context) error {
	config, err := s.tlsConfig(ctx)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.address())
	if err != nil {
		return err
	}
	server := &manager.Server{
		Name:            "webhooks",
		Server:          limited(ctx, s.WebhookMux()),
		Listener:        tls.NewListener(netutil.LimitListener(limit.PerClient(listener, maxOfOne), maxConnections), config),
		ShutdownTimeout: new(time.Minute),
	}
	return server.Start(ctx)
}

// limited is a server of a handler, whose requests end when a context does.
func limited(ctx context.Context, handler http.Handler) *http.Server {
	fresh := &freshConnections{}
	server := &http.Server{
		ConnState:         fresh.note,
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
	}
	server.RegisterOnShutdown(fresh.close)
	return server
}

// tlsConfig has the certificate of the options, or that of the files, which may be replaced at any time.
func (s limitedServer) tlsConfig(ctx context.Context) (*tls.Config, error) {
	config := &tls.Config{}
	for _, option := range s.options.TLSOpts {
		option(config)
	}
	if config.GetCertificate != nil {
		return config, nil
	}
	watcher, err := certwatcher.New(filepath.Join(s.options.CertDir, "tls.crt"), filepath.Join(s.options.CertDir, "tls.key"))
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

// StartedChecker overrides that of the webhook server.
func (s limitedServer) StartedChecker() healthz.Checker {
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // it asks whether anybody answers, not who
	return func(request *http.Request) error {
		connection, err := dialer.DialContext(request.Context(), "tcp", s.address())
		if err != nil {
			return fmt.Errorf("the webhooks are not reachable: %w", err)
		}
		return connection.Close()
	}
}
