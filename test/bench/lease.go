// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// A lease is what was heard of the operator's.
type lease struct {
	renewed          time.Time
	gap              time.Duration // the longest without a renewal
	renewals, losses float64
	transitions      int32
}

// look takes what the lease says.
func (l *lease) look(spec coordinationv1.LeaseSpec) {
	at, transitions := ptr.Deref(spec.RenewTime, metav1.MicroTime{}).Time, ptr.Deref(spec.LeaseTransitions, 0)
	if !at.After(l.renewed) {
		return
	}
	l.gap = max(l.gap, at.Sub(l.renewed))
	l.renewed = at
	l.renewals++
	l.losses += float64(transitions - l.transitions)
	l.transitions = transitions
}

// follow looks at the lease until the context ends.
func (l *lease) follow(ctx context.Context, w *world) error {
	clientset, err := kubernetes.NewForConfig(w.plane.Config)
	if err != nil {
		return err
	}
	leases := clientset.CoordinationV1().Leases("useless-system")
	list, err := leases.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	watcher, err := changes(ctx, list.ResourceVersion, leases.Watch)
	if err != nil {
		return err
	}
	for event := range watcher.ResultChan() {
		heard, ok := event.Object.(*coordinationv1.Lease)
		if !ok {
			return fmt.Errorf("watch the lease: %v", event.Object)
		}
		l.look(heard.Spec)
	}
	return nil
}
