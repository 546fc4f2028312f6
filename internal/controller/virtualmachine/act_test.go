// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCannotResize(t *testing.T) {
	pods := corev1.Resource("pods")
	nameless := &apierrors.StatusError{ErrStatus: metav1.Status{
		Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Details: &metav1.StatusDetails{},
	}}
	for _, tt := range []struct {
		reason string
		err    error
		want   bool
	}{
		{"the error of an API server before Kubernetes 1.33 does not name the Pod", nameless, true},
		{"the error has no details", &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound}}, true},
		{"the error may be wrapped", fmt.Errorf("resize: %w", nameless), true},
		{
			"the answer is not from the API, but plain text",
			apierrors.NewGenericServerResponse(http.StatusNotFound, "PATCH", pods, "pod", "404 page not found", 0, true), true,
		},
		{"the Pod does not exist", apierrors.NewNotFound(pods, "pod"), false},
		{"the Pod has changed", apierrors.NewConflict(pods, "pod", nil), false},
		{"the answer is an error of a proxy", apierrors.NewGenericServerResponse(http.StatusBadGateway, "PATCH", pods, "pod", "", 0, true), false},
		{"there was no answer", errors.New("connection refused"), false},
		{"the Pod was resized", nil, false},
	} {
		if got := cannotResize(tt.err); got != tt.want {
			t.Errorf("%s: got %t for %v", tt.reason, got, tt.err)
		}
	}
}
