// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"reflect"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A quiet manager is one whose controllers' queues have no metrics. Those are updated twice a second, for hours in which
// nothing happens.
type quiet struct{ ctrl.Manager }

// Add implements manager.Manager.
func (m quiet) Add(runnable manager.Runnable) error {
	// A controller has no other place where its queue can be chosen, unless those who make it choose one.
	if value := reflect.Indirect(reflect.ValueOf(runnable)); value.Kind() == reflect.Struct {
		if newQueue := value.FieldByName("NewQueue"); newQueue.IsValid() {
			newQueue.Set(reflect.ValueOf(newQuietQueue))
		}
	}
	return m.Manager.Add(runnable)
}

func newQuietQueue(_ string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return priorityqueue.New("", func(options *priorityqueue.Opts[reconcile.Request]) { options.RateLimiter = limiter })
}
