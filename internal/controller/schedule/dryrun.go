// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// dryRunLease is the name of a Lease in the operator's namespace. Its renew time is the last time of a dry run by flag.
// A dry run writes nothing to workloads, so the next run without the flag would take all schedules for new ones.
const dryRunLease = "schedule-dry-run.useless.container.training"

const dryRunRenewal = 10 * time.Second

// setupDryRun returns the end of the last dry run by flag; zero for none. If the flag is set, it adds a runnable that
// renews the Lease. Without a namespace, nothing is stored.
func (o Options) setupDryRun(ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock) (time.Time, error) {
	if o.OwnNamespace == "" {
		return time.Time{}, nil
	}
	key := client.ObjectKey{Namespace: o.OwnNamespace, Name: dryRunLease}
	if !o.DryRun {
		lease := &coordinationv1.Lease{}
		err := mgr.GetAPIReader().Get(ctx, key, lease)
		if err != nil || lease.Spec.RenewTime == nil {
			return time.Time{}, client.IgnoreNotFound(err)
		}
		return lease.Spec.RenewTime.Time, nil
	}
	writer := mgr.GetClient()
	return time.Time{}, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { // runs on the leader only
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := renewDryRun(ctx, mgr.GetAPIReader(), writer, key, clock.Now()); err != nil && ctx.Err() == nil {
				mgr.GetLogger().WithName(Name).Error(err, "Cannot record the time of the dry run")
			}
		}, dryRunRenewal)
		return nil
	}))
}

// renewDryRun writes the time into the Lease, and creates the Lease if necessary.
func renewDryRun(
	ctx context.Context, reader client.Reader, writer client.Writer, key client.ObjectKey, now time.Time,
) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	err := reader.Get(ctx, key, lease)
	lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
	switch {
	case err == nil:
		return writer.Update(ctx, lease, client.DisableReadYourWritesConsistency)
	case client.IgnoreNotFound(err) == nil:
		return writer.Create(ctx, lease, client.DisableReadYourWritesConsistency)
	default:
		return err
	}
}
