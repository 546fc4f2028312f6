// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Newer reports whether the resourceVersion a is known to be later than b. Where that cannot be told the cache is to be
// believed, which costs a refused request at worst.
func Newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// Gone reports whether an error says that an object is not there. That nobody serves its kind, as while an API server has yet to
// hear of a version, says nothing about the object.
func Gone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// IgnoreGone returns nil for an error that says that an object is not there, and any other error as it is.
func IgnoreGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}

// Refused reports whether a request was turned down for what it asks, so that to repeat it at once is no use. A webhook
// that denies a request without saying with which code makes it a bad one.
func Refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// Unanswered reports whether a request may have been carried out although it failed: its answer was lost, or says no more than
// that something went wrong.
func Unanswered(err error) bool {
	if err == nil || utilnet.IsConnectionRefused(err) {
		return false
	}
	status := apierrors.APIStatus(nil)
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError
}

// QuotaExceeded reports whether a ResourceQuota refused a request. The API server says so in the message alone.
func QuotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// maxBrief is how many bytes the API server takes of an event's note. A condition's message may have more, but not without end.
const maxBrief = 1024

// Brief cuts off what others say where it gets too long for an event or a condition.
func Brief(message string) string {
	if len(message) <= maxBrief {
		return message
	}
	const end = "…"
	return strings.ToValidUTF8(message[:maxBrief-len(end)], "") + end
}
