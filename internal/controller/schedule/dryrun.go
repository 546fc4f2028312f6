// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"container.training/useless/internal/schedule"
)

// dryRunLease is the name of a Lease in the operator's namespace. Its renew time is the last time at which the operator
// ran with the flag --schedule-dry-run. A dry run does not write to workloads. Without the Lease, an operator that runs
// without the flag again would execute a start or stop that was due in the dry run.
const dryRunLease = "schedule-dry-run.useless.container.training"

// dryRunRenewal is the time between two renewals of the Lease.
const dryRunRenewal = 10 * time.Second

// cacheDelay is the time after which the operator assumes that its caches of workloads and Namespaces have a change.
// Usually, they have it after some milliseconds.
const cacheDelay = 2 * time.Second

// dryRunMemory is the data in memory about the last dry run of a workload. A dry run does not write it to the workload.
type dryRunMemory struct {
	isRunning bool      // the last plan was in a dry run
	end       time.Time // the time of the first plan after the dry run; zero for none
	event     string    // the plan.key of the last event that was announced
	simulated simulated
}

// after returns the memory after a plan that is not in a dry run. A start or a stop that was due in the dry run must
// not be executed. So the memory keeps the end of the dry run until that start or stop is recorded, and at least for
// cacheDelay.
func (m dryRunMemory) after(p plan, now time.Time) dryRunMemory {
	if m.isRunning {
		m = dryRunMemory{end: now} // forget the simulated state: the next dry run begins with the workload's state
	}
	if p.outcome == nothing && !p.isInvalid && !now.Before(m.end.Add(cacheDelay)) {
		return dryRunMemory{}
	}
	return m
}

// forgottenAt returns when the memory can be dropped; zero if there is nothing to wait for. A user may edit the
// schedule in the Namespace, and then end the dry run in the workload, or vice versa. The operator reads Namespaces and
// workloads from different caches, so it may see the end of the dry run before the edit. So the memory remains for
// cacheDelay, even if nothing is due.
func (m dryRunMemory) forgottenAt(now time.Time) time.Time {
	switch at := m.end.Add(cacheDelay); {
	case m.isRunning:
		return now.Add(cacheDelay)
	case at.After(now):
		return at
	default:
		return time.Time{}
	}
}

// simulated describes a workload as if the dry run had executed all plans. The zero value means that there was no plan.
type simulated struct {
	is     bool            // there was a plan
	stored schedule.Record // the record in the annotations of the workload
	actual int32           // the level of the workload
	level  int32           // the level that the workload would have
	record schedule.Record // the record that the workload would have
}

// dryRunEnd reads the end of the last dry run by flag, and keeps it in memory.
type dryRunEnd struct {
	reader client.Reader
	lease  client.ObjectKey // the key of the Lease; without a namespace, there is no Lease

	mu     sync.Mutex
	isRead bool
	end    time.Time
}

// setupDryRun returns a dryRunEnd. If the flag is set, it adds a runnable that renews the Lease.
func (o Options) setupDryRun(mgr ctrl.Manager, clock clock.PassiveClock) (*dryRunEnd, error) {
	end := &dryRunEnd{
		reader: mgr.GetAPIReader(), lease: client.ObjectKey{Namespace: o.OwnNamespace, Name: dryRunLease},
	}
	if !o.DryRun || o.OwnNamespace == "" {
		return end, nil
	}
	return end, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { // runs on the leader only
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			err := renewDryRun(ctx, end.reader, mgr.GetClient(), end.lease, clock.Now())
			if err != nil && ctx.Err() == nil {
				mgr.GetLogger().WithName(Name).Error(err, "Cannot record the time of the dry run")
			}
		}, dryRunRenewal)
		return nil
	}))
}

// read returns the end of the last dry run; zero for none. It reads the Lease only once, in the first reconcile of a
// new leader. Before that, the previous leader may still renew the Lease. After the last renewal, the dry run can have
// continued for up to dryRunRenewal, so read adds this time.
func (d *dryRunEnd) read(ctx context.Context) (time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isRead || d.lease.Namespace == "" {
		return d.end, nil
	}
	lease := &coordinationv1.Lease{}
	if err := client.IgnoreNotFound(d.reader.Get(ctx, d.lease, lease)); err != nil {
		return time.Time{}, fmt.Errorf("read the end of the last dry run: %w", err)
	}
	if d.isRead = true; lease.Spec.RenewTime != nil {
		d.end = lease.Spec.RenewTime.Add(dryRunRenewal)
	}
	return d.end, nil
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
