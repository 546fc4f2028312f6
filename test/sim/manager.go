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

// A quiet manager is one whose controllers' queues have no metrics. Those are updated twice a second, for hours in which
// nothing happens. It counts what its controllers reconcile.
type quiet struct {
	ctrl.Manager

	reconciles *atomic.Int64
}

// Add implements manager.Manager.
func (m quiet) Add(runnable manager.Runnable) error {
	// A controller has no other place where its queue can be chosen and its reconciler be watched, unless those who make it do so.
	if value := reflect.Indirect(reflect.ValueOf(runnable)); value.Kind() == reflect.Struct {
		if newQueue := value.FieldByName("NewQueue"); newQueue.IsValid() {
			newQueue.Set(reflect.ValueOf(newQuietQueue))
		}
		if do := value.FieldByName("Do"); do.IsValid() {
			do.Set(reflect.ValueOf(counted{do.Interface().(reconcile.Reconciler), m.reconciles}))
		}
	}
	return m.Manager.Add(runnable)
}

// A counted reconciler is one that counts.
type counted struct {
	reconcile.Reconciler

	reconciles *atomic.Int64
}

// Reconcile implements reconcile.Reconciler.
func (c counted) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	c.reconciles.Add(1)
	return c.Reconciler.Reconcile(ctx, request)
}

func newQuietQueue(_ string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return priorityqueue.New("", func(options *priorityqueue.Opts[reconcile.Request]) { options.RateLimiter = limiter })
}
