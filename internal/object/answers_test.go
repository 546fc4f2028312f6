// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"context"
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

func TestUnanswered(t *testing.T) {
	switches := schema.GroupResource{Group: "useless.container.training", Resource: "switches"}
	failed := func(errno syscall.Errno) error {
		return &url.Error{Op: "Patch", URL: "https://127.0.0.1", Err: os.NewSyscallError("read", errno)}
	}
	for _, test := range []struct {
		reason string
		err    error
		want   bool
	}{
		{"it has succeeded", nil, false},
		{"the connection was reset", failed(syscall.ECONNRESET), true},
		{"there was no connection", failed(syscall.ECONNREFUSED), false},
		{"the connection was closed", &url.Error{Op: "Patch", Err: io.EOF}, true},
		{"nobody waited any longer", context.DeadlineExceeded, true},
		{"the API server timed out", apierrors.NewTimeoutError("etcd", 0), true},
		{"the API server failed", apierrors.NewInternalError(io.EOF), true},
		{"the object has changed", apierrors.NewConflict(switches, "m-0", io.EOF), false},
		{"the API server says no, which is told in other words", fmt.Errorf("turn: %w", apierrors.NewForbidden(switches, "m-0", io.EOF)), false},
		{"there are too many requests", apierrors.NewTooManyRequests("later", 1), false},
	} {
		if got := Unanswered(test.err); got != test.want {
			t.Errorf("%s: got %t for %v", test.reason, got, test.err)
		}
	}
}

func TestGone(t *testing.T) {
	switches := schema.GroupResource{Group: "useless.container.training", Resource: "switches"}
	for _, test := range []struct {
		reason string
		err    error
		want   bool
	}{
		{"it is there", nil, false},
		{"it is not", fmt.Errorf("look: %w", apierrors.NewNotFound(switches, "m-0")), true},
		{"nobody serves its kind", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", switches, "m-0", "404 page not found", 0, true), false},
		{"nobody may look", apierrors.NewForbidden(switches, "m-0", io.EOF), false},
	} {
		if got := Gone(test.err); got != test.want {
			t.Errorf("%s: got %t for %v", test.reason, got, test.err)
		}
		if left := IgnoreGone(test.err); (left == nil) != (test.want || test.err == nil) {
			t.Errorf("%s: %v is left", test.reason, left)
		}
	}
}
