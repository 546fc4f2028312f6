// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package apierror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestIsUnanswered(t *testing.T) {
	switches := schema.GroupResource{Group: "useless.container.training", Resource: "switches"}
	failed := func(errno syscall.Errno) error {
		return &url.Error{Op: "Patch", URL: "https://127.0.0.1", Err: os.NewSyscallError("read", errno)}
	}
	// The API server returns such an error if it cannot call a webhook, see the package apiserver/pkg/util/webhook.
	webhook := errors.New(`failed calling webhook "policy.example.com": connect: connection refused`)
	for _, test := range []struct {
		reason string
		err    error
		want   bool
	}{
		{"the request succeeded", nil, false},
		{"a webhook could not be called", fmt.Errorf("turn: %w", apierrors.NewInternalError(webhook)), false},
		{"the connection was reset", failed(syscall.ECONNRESET), true},
		{"there was no connection", failed(syscall.ECONNREFUSED), false},
		{"the connection was closed", &url.Error{Op: "Patch", Err: io.EOF}, true},
		{"the deadline passed", context.DeadlineExceeded, true},
		{"the API server timed out", apierrors.NewTimeoutError("etcd", 0), true},
		{"the API server failed", apierrors.NewInternalError(io.EOF), true},
		{"the object has changed", apierrors.NewConflict(switches, "m-0", io.EOF), false},
		{"a wrapped Forbidden", fmt.Errorf("turn: %w", apierrors.NewForbidden(switches, "m-0", io.EOF)), false},
		{"too many requests", apierrors.NewTooManyRequests("later", 1), false},
	} {
		if got := IsUnanswered(test.err); got != test.want {
			t.Errorf("%s: got %t for %v", test.reason, got, test.err)
		}
	}
}

func TestIgnoreGone(t *testing.T) {
	switches := schema.GroupResource{Group: "useless.container.training", Resource: "switches"}
	for _, test := range []struct {
		reason string
		err    error
		want   bool // whether IgnoreGone replaces the error with nil
	}{
		{"no error", nil, false},
		{"a wrapped NotFound", fmt.Errorf("look: %w", apierrors.NewNotFound(switches, "m-0")), true},
		{"the kind is not served", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", switches, "m-0", "404 page not found", 0, true), false},
		{"forbidden", apierrors.NewForbidden(switches, "m-0", io.EOF), false},
	} {
		if left := IgnoreGone(test.err); (left == nil) != (test.want || test.err == nil) {
			t.Errorf("%s: IgnoreGone returned %v", test.reason, left)
		}
	}
}
