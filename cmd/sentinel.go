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

// renewDeadline is how long a leader that cannot renew its lease goes on. It is less than the lease, which is for 15 s.
const renewDeadline = 10 * time.Second

// A sentinel ends a leader whose process was stopped for so long that it may not be one any more. The leader election would have
// it go on for another renewDeadline, beside the next leader and with what it knew before. It ends at once: to release the
// lease could take it from who has it by now.
type sentinel struct {
	clock clock.WithTicker
	most  time.Duration
	exit  func(stopped time.Duration)
}

// watchLeader adds a sentinel to a manager that elects a leader.
func (o *options) watchLeader(mgr ctrl.Manager) error {
	if !o.leaderElect {
		return nil
	}
	return mgr.Add(&sentinel{clock.RealClock{}, renewDeadline, func(stopped time.Duration) {
		mgr.GetLogger().Info("Ending: this process did not run for so long that another one may lead", "stopped", stopped.String())
		os.Exit(1)
	}})
}

// Start implements manager.Runnable. It is called by who leads.
func (s *sentinel) Start(ctx context.Context) error {
	ticker := s.clock.NewTicker(time.Second)
	defer ticker.Stop()
	for last := s.clock.Now(); ; last = s.clock.Now() {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			if stopped := s.clock.Since(last); stopped >= s.most {
				s.exit(stopped)
			}
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *sentinel) NeedLeaderElection() bool { return true }
