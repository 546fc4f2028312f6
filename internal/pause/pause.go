// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pause implements the annotation that stops the operator from changing an object.
package pause

import (
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"container.training/useless/api/useless/v1beta1"
)

// IsPaused reports whether PausedAnnotation is true on an object. For an invalid value, it returns false.
func IsPaused(object client.Object) bool {
	paused, _ := strconv.ParseBool(object.GetAnnotations()[v1beta1.PausedAnnotation])
	return paused
}

// Predicate drops the watch events of paused objects, except if the object is being deleted or does not exist any more.
func Predicate() predicate.Predicate {
	funcs := predicate.NewPredicateFuncs(func(object client.Object) bool {
		return !IsPaused(object) || !object.GetDeletionTimestamp().IsZero()
	})
	funcs.DeleteFunc = nil // accept all deletions, so that controllers drop their data about the object
	return funcs
}
