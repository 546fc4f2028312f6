// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"reflect"
	"sync/atomic"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A quietManager creates its controllers' queues without metrics. A queue with metrics updates them twice a second,
// even if a simulation is idle for hours. A quietManager also counts reconciles.
type quietManager struct {
	ctrl.Manager

	reconciles *atomic.Int64
}

// Add implements manager.Manager.
func (m quietManager) Add(runnable manager.Runnable) error {
	// The controllers do not export their queue and reconciler, so Add replaces both by reflection.
	if value := reflect.Indirect(reflect.ValueOf(runnable)); value.Kind() == reflect.Struct {
		if newQueue := value.FieldByName("NewQueue"); newQueue.IsValid() {
			newQueue.Set(reflect.ValueOf(newQuietQueue))
		}
		if do := value.FieldByName("Do"); do.IsValid() {
			do.Set(reflect.ValueOf(countingReconciler{do.Interface().(reconcile.Reconciler), m.reconciles}))
		}
	}
	return m.Manager.Add(runnable)
}

// A countingReconciler counts its reconciles.
type countingReconciler struct {
	reconcile.Reconciler

	reconciles *atomic.Int64
}

// Reconcile implements reconcile.Reconciler.
func (c countingReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	c.reconciles.Add(1)
	return c.Reconciler.Reconcile(ctx, request)
}

func newQuietQueue(_ string,
	limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return priorityqueue.New("", func(options *priorityqueue.Opts[reconcile.Request]) { options.RateLimiter = limiter })
}
