// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package object has what the controllers have in common: how they change objects, tell people of it, keep away from
// those that are paused, and try again.
package object

import (
	"context"
	"reflect"
	"strconv"

	"github.com/operator-framework/operator-lib/predicate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	ctrlpredicate "sigs.k8s.io/controller-runtime/pkg/predicate"

	"container.training/useless/api/useless/v1beta1"
)

// Patch changes an object, unless it has changed since it was read, and returns it as it is then. The one that was
// read may belong to a cache and stays as it is. A change that changes nothing costs no request.
func Patch[T client.Object](ctx context.Context, c client.Writer, read T, change func(T)) (T, error) {
	changed := read.DeepCopyObject().(T)
	change(changed)
	if reflect.DeepEqual(read, changed) {
		return read, nil
	}
	return changed, c.Patch(ctx, changed, unlessChanged(read))
}

// PatchStatus gives an object another status, unless it has changed since it was read, and returns it as it is then.
// The function status says where it has its status. Neither the object that was read nor the status that is given is
// changed. A status that says nothing new costs no request.
func PatchStatus[T client.Object, S any](ctx context.Context, c client.StatusClient, read T, status func(T) *S, updated *S) (T, error) {
	if reflect.DeepEqual(status(read), updated) {
		return read, nil
	}
	changed := read.DeepCopyObject().(T)
	*status(changed) = *updated
	// Once more, because the answer is decoded into it, and the status may share what it points to with other objects.
	changed = changed.DeepCopyObject().(T)
	return changed, c.Status().Patch(ctx, changed, unlessChanged(read))
}

// EnsureFinalizer puts a finalizer on, before there is anything to finalize. It returns the object as it is then.
func EnsureFinalizer[T client.Object](ctx context.Context, c client.Writer, read T, finalizer string) (T, error) {
	if controllerutil.ContainsFinalizer(read, finalizer) {
		return read, nil
	}
	return Patch(ctx, c, read, func(object T) { controllerutil.AddFinalizer(object, finalizer) })
}

// RemoveFinalizer lets an object go, which may be gone already. It returns the object as it is then.
func RemoveFinalizer[T client.Object](ctx context.Context, c client.Writer, read T, finalizer string) (T, error) {
	written, err := Patch(ctx, c, read, func(object T) { controllerutil.RemoveFinalizer(object, finalizer) })
	return written, IgnoreGone(err)
}

// unlessChanged is a patch from an object as it was read, which is refused if the object has changed since: a merge
// patch replaces whole lists, such as finalizers, and what was decided on an old state may be wrong for a new one.
func unlessChanged(read client.Object) client.Patch {
	return client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
}

// Paused reports whether an object asks not to be touched, as NotPaused reads it.
func Paused(object client.Object) bool {
	annotation, ok := object.GetAnnotations()[v1beta1.PausedAnnotation]
	if !ok {
		return false
	}
	value, err := strconv.ParseBool(annotation)
	return err == nil && value
}

// NotPaused lets events pass, except those of objects that are paused. One that is being deleted, or is gone, may be, whatever
// it asks for.
func NotPaused() ctrlpredicate.Predicate {
	notPaused, err := predicate.NewPause[client.Object](v1beta1.PausedAnnotation)
	if err != nil {
		panic(err) // the annotation's key is invalid: a mistake in the API
	}
	going := ctrlpredicate.NewPredicateFuncs(func(object client.Object) bool { return !object.GetDeletionTimestamp().IsZero() })
	going.DeleteFunc = nil // which lets all pass: who remembers something of the object forgets it
	return ctrlpredicate.Or(notPaused, going)
}
