// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// renewDeadline is how long a leader continues without renewing its Lease. It is shorter than the Lease's duration of
// 15 s.
const renewDeadline = 10 * time.Second

// suspendWatchdog exits the process if it was suspended past the renew deadline: another replica may lead. The leader
// election would let the process continue for another renewDeadline with stale data. The process exits without
// releasing the Lease, because another replica may hold it.
type suspendWatchdog struct {
	clock   clock.WithTicker
	longest time.Duration // a suspension this long, or longer, ends the process
	exit    func(suspended time.Duration)
}

// watchSuspension adds a suspendWatchdog to a manager with leader election.
func (o *options) watchSuspension(mgr ctrl.Manager) error {
	if !o.leaderElect {
		return nil
	}
	return mgr.Add(&suspendWatchdog{clock.RealClock{}, renewDeadline, func(suspended time.Duration) {
		mgr.GetLogger().Info("Exiting: the process was suspended, and another replica may lead",
			"suspended", suspended.String())
		os.Exit(1)
	}})
}

// Start implements manager.Runnable.
func (w *suspendWatchdog) Start(ctx context.Context) error {
	ticker := w.clock.NewTicker(time.Second)
	defer ticker.Stop()
	for last := w.clock.Now(); ; last = w.clock.Now() {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			if suspended := w.clock.Since(last); suspended >= w.longest {
				w.exit(suspended)
			}
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (w *suspendWatchdog) NeedLeaderElection() bool { return true }
