// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package patch changes objects with merge patches that contain the resourceVersion. The API server rejects such a
// patch if the object has changed since it was read. Without this check, a merge patch could overwrite a concurrent
// change, because it replaces whole lists, such as finalizers. A decision on the old state may also be wrong for the
// new state.
package patch

import (
	"context"
	"reflect"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"container.training/useless/internal/apierror"
	"container.training/useless/internal/memory"
)

// Object applies a change to a copy of an object, sends a patch and returns the API server's answer. The given object
// is not changed, because it may belong to a cache. If the change makes no difference, Object sends no request and
// returns the given object.
func Object[T client.Object](
	ctx context.Context, c client.Writer, read T, change func(T), options ...client.PatchOption,
) (T, error) {
	changed := read.DeepCopyObject().(T)
	change(changed)
	if reflect.DeepEqual(read, changed) {
		return read, nil
	}
	return changed, c.Patch(ctx, changed, from(read), options...)
}

// Status is like Object, but replaces the status of an object. The function field returns a pointer to the status.
func Status[T client.Object, S any](
	ctx context.Context, c client.StatusClient, read T, field func(T) *S, status *S,
) (T, error) {
	if reflect.DeepEqual(field(read), status) {
		return read, nil
	}
	changed := read.DeepCopyObject().(T)
	*field(changed) = *status
	// Patch decodes the answer into changed. So changed must not share memory with the given status.
	changed = changed.DeepCopyObject().(T)
	return changed, c.Status().Patch(ctx, changed, from(read))
}

// Finalizer is a finalizer of one controller. It remembers the objects from which it was removed, because the cache can
// still show the removed finalizer for a while. After other writes, reads wait until the cache has the resource version
// of the write. If the removal deletes the object, the answer has no newer version, so a read cannot wait for it.
type Finalizer struct {
	Name    string
	removed memory.Memory[bool]
}

// Holds reports whether an object has the finalizer.
func (f *Finalizer) Holds(object client.Object) bool {
	return controllerutil.ContainsFinalizer(object, f.Name) && !f.removed.Of(object)
}

// Forget drops the data in memory about an object. A controller calls it when the object does not exist any more.
func (f *Finalizer) Forget(key types.NamespacedName) { f.removed.Forget(key) }

// AddFinalizer adds a finalizer and returns the resulting object.
func AddFinalizer[T client.Object](ctx context.Context, c client.Writer, read T, f *Finalizer) (T, error) {
	if controllerutil.ContainsFinalizer(read, f.Name) {
		return read, nil
	}
	return Object(ctx, c, read, func(object T) { controllerutil.AddFinalizer(object, f.Name) })
}

// RemoveFinalizer removes a finalizer. It returns nil if the object does not exist any more.
//
// Later reads do not wait for this write. It is usually the operator's last write to the object, even if the object has
// other finalizers and is deleted later. The cache can miss the event of the write, and list again after the deletion.
// Then no event has the resource version of the write. A read that waits for this version would fail until another
// object of the kind changes.
func RemoveFinalizer[T client.Object](ctx context.Context, c client.Writer, read T, f *Finalizer) error {
	_, err := Object(ctx, c, read, func(object T) { controllerutil.RemoveFinalizer(object, f.Name) },
		client.DisableReadYourWritesConsistency)
	if err = apierror.IgnoreGone(err); err == nil {
		f.removed.Keep(read, true)
	}
	return err
}

func from(read client.Object) client.Patch {
	return client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
}

// Values of the metric label "result".
const (
	ResultSuccess = "success"
	ResultError   = "error"
)

// Counter counts requests by result.
type Counter struct{ *prometheus.CounterVec }

// NewCounter registers a Counter. Both results have the value 0 from the start, so that an alert sees the step from 0
// to 1.
func NewCounter(registerer prometheus.Registerer, name, help string) Counter {
	options := prometheus.CounterOpts{Name: name, Help: help}
	c := Counter{promauto.With(registerer).NewCounterVec(options, []string{"result"})}
	c.WithLabelValues(ResultSuccess)
	c.WithLabelValues(ResultError)
	return c
}

// Count counts a request. A nil error is a success.
func (c Counter) Count(err error) {
	result := ResultSuccess
	if err != nil {
		result = ResultError
	}
	c.WithLabelValues(result).Inc()
}
