// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// progress logs the progress of a pass.
type progress struct {
	log      logr.Logger
	clock    clock.PassiveClock
	start    time.Time
	reported time.Time
	done     int   // objects
	total    int64 // objects, as estimated by the API server
}

func newProgress(log logr.Logger, clock clock.PassiveClock) *progress {
	now := clock.Now()
	return &progress{log: log, clock: clock, start: now, reported: now}
}

// page updates the total from a page of a list.
func (p *progress) page(list *metav1.PartialObjectMetadataList) {
	p.total = int64(p.done + len(list.Items))
	if rest := list.GetRemainingItemCount(); rest != nil {
		p.total += *rest
	}
	if p.done == 0 {
		p.log.Info("Rewriting objects that are stored in another version", "objects", p.total)
	}
}

func (p *progress) one() {
	p.done++
	if p.clock.Since(p.reported) >= reportInterval {
		p.reported = p.clock.Now()
		p.log.Info("Still rewriting", "done", p.done, "objects", p.total)
	}
}

func (p *progress) end(rewritten int) {
	p.log.Info("Finished a pass", "rewritten", rewritten, "objects", p.done, "duration", p.clock.Since(p.start).String())
}
