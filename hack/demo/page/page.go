// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package page serves a web page that shows the Machines of a cluster as switches, its scheduled workloads and the
// operator's events. Users can turn switches up in the page. The page is only for the demo. It listens on 127.0.0.1, so
// all users of the computer can change switches with the permissions of the demo.
package page

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

const (
	// heartbeat is the time between two comments in a stream. A failed write ends the stream of a client that is gone.
	heartbeat = 15 * time.Second
	// writeTimeout limits a write to a stream.
	writeTimeout = 10 * time.Second
	// requestTimeout limits the time to read a client's request, and each request to the API server.
	requestTimeout = 5 * time.Second
	// shutdownTimeout limits the time for requests in progress when the demo ends.
	shutdownTimeout = time.Second
)

//go:embed index.html
var index []byte

// policy is the Content-Security-Policy of the page. The browser may run only the page's own script and connect only to
// this server. The browser loads no other files.
var policy = fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; connect-src 'self'; img-src data:; "+
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", hashOf("style"), hashOf("script"))

// hashOf returns the hash of an inline element of the page, as a source of a Content-Security-Policy.
func hashOf(element string) string {
	_, text, _ := strings.Cut(string(index), "<"+element+">")
	text, _, _ = strings.Cut(text, "</"+element+">")
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}

// handler returns the HTTP handler of the page. It rejects requests whose host is not a loopback address, and POST
// requests from other sites.
func (p *Page) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", serveIndex)
	mux.HandleFunc("GET /events", p.stream)
	mux.HandleFunc("POST /switches/{namespace}/{name}", p.turn)
	protected := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A page on the internet can point its own host name at 127.0.0.1 (DNS rebinding).
		if !isLoopback(r.Host) {
			http.Error(w, "use the URL that the demo prints: this host is not a loopback address", http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		protected.ServeHTTP(w, r)
	})
}

// isLoopback reports whether the host of a request, with or without a port, is localhost or a loopback address.
func isLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.Trim(hostPort, "[]")
	}
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

func serveIndex(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(index) // it fails only if the client is gone
}

// stream sends the full state, then changes, until the client is gone or the server stops.
func (p *Page) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	controller := http.NewResponseController(w)
	send := func(text string) error {
		err := controller.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, writeErr := fmt.Fprint(w, text)
		return errors.Join(err, writeErr, controller.Flush())
	}
	latest := p.latest.Load()
	text := "retry: 1000\n" + latest.since(nil)
	for send(text) == nil {
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
			text = ":\n\n" // a comment
		case <-latest.outdated:
			previous := latest
			latest = p.latest.Load()
			text = latest.since(previous)
		}
	}
}

// turn turns a switch up.
func (p *Page) turn(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Position v1beta1.Position `json:"position"`
	}
	// A client that never sends its body must not delay the end of the demo.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(requestTimeout))
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&body)
	if err != nil || body.Position != v1beta1.PositionUp {
		http.Error(w, `the body must be {"position":"up"}`, http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	sw := &v1beta1.Switch{}
	sw.Namespace, sw.Name = r.PathValue("namespace"), r.PathValue("name")
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"position":"up"}}`))
	if err := p.client.Patch(ctx, sw, patch, client.FieldOwner("useless-demo")); err != nil {
		code := http.StatusBadGateway
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok && status.ErrStatus.Code >= http.StatusBadRequest {
			code = int(status.ErrStatus.Code)
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// serve serves the page on a listener until the context ends. Then it ends all streams.
func (p *Page) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           p.handler(),
		ReadHeaderTimeout: requestTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	var wait sync.WaitGroup
	wait.Go(func() { p.refreshUntil(ctx) })
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // it also closes connections that have not sent a request yet
		}
		close(stopped)
	})
	err := server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		wait.Wait()
		return nil
	}
	return err
}
