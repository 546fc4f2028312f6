// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Newer reports whether the resourceVersion a is known to be later than b. Where that cannot be told the cache is to be
// believed, which costs a refused request at worst.
func Newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// Refused reports whether a request was turned down for what it asks, so that to repeat it at once is no use. A webhook
// that denies a request without saying with which code makes it a bad one.
func Refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// QuotaExceeded reports whether a ResourceQuota refused a request. The API server says so in the message alone.
func QuotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}
