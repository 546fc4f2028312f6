// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apierror classifies errors of the API server.
package apierror

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// IgnoreGone returns nil if err is nil or says that the object does not exist. Otherwise, it returns err. It also
// returns err if the API server does not serve the object's kind, because the object may still exist.
func IgnoreGone(err error) error {
	if apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err) {
		return nil
	}
	return err
}

// IsRefused reports whether the API server rejected the content of a request, so that an immediate retry cannot
// succeed. It returns true for BadRequest, because the API server returns this error if a webhook denies a request and
// its answer has no status code.
func IsRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// IsUnanswered reports whether the API server may have executed a failed request: the answer was lost, or the answer is
// a server error. It returns false for nil, and if the API server could not call an admission webhook.
func IsUnanswered(err error) bool {
	if err == nil || utilnet.IsConnectionRefused(err) || isNotAdmitted(err) {
		return false
	}
	status := apierrors.APIStatus(nil)
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError
}

// isNotAdmitted reports whether the API server could not call an admission webhook. The request then had no effect.
// Only the message of the error contains the cause.
func isNotAdmitted(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook")
}

// IsQuotaExceeded reports whether a ResourceQuota rejected a request. Only the message of the error contains the cause.
func IsQuotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}
