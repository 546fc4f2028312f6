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

// IsPaused reports whether the annotation of an object is true. It reads the annotation like Predicate.
func IsPaused(object client.Object) bool {
	value, err := strconv.ParseBool(object.GetAnnotations()[v1beta1.PausedAnnotation])
	return err == nil && value
}

// Predicate drops the events of paused objects, except for objects that are being deleted or are gone.
func Predicate() ctrlpredicate.Predicate {
	notPaused, err := predicate.NewPause[client.Object](v1beta1.PausedAnnotation)
	if err != nil {
		panic(err) // the annotation's key is invalid: a mistake in the API package
	}
	deleting := ctrlpredicate.NewPredicateFuncs(func(object client.Object) bool {
		return !object.GetDeletionTimestamp().IsZero()
	})
	deleting.DeleteFunc = nil // accepts all: controllers forget what they know about the object
	return ctrlpredicate.Or(notPaused, deleting)
}
