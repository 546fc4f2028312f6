// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pause lets users stop the operator from changing an object, with an annotation.
package pause

import (
	"strconv"

	"github.com/operator-framework/operator-lib/predicate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlpredicate "sigs.k8s.io/controller-runtime/pkg/predicate"

	"container.training/useless/api/useless/v1beta1"
)

// IsPaused reports whether the annotation of an object is true. Predicate uses the same parser.
func IsPaused(object client.Object) bool {
	value, err := strconv.ParseBool(object.GetAnnotations()[v1beta1.PausedAnnotation])
	return err == nil && value
}

// Predicate drops the watch events of paused objects, except if the object is being deleted or does not exist any more.
func Predicate() ctrlpredicate.Predicate {
	notPaused, err := predicate.NewPause[client.Object](v1beta1.PausedAnnotation)
	if err != nil {
		panic(err) // the annotation key in the API package is invalid
	}
	deleting := ctrlpredicate.NewPredicateFuncs(func(object client.Object) bool {
		return !object.GetDeletionTimestamp().IsZero()
	})
	deleting.DeleteFunc = nil // accept all deletions, so that controllers drop their data about the object
	return ctrlpredicate.Or(notPaused, deleting)
}
