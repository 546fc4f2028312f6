// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// progress logs how far a pass has got.
type progress struct {
	log      logr.Logger
	clock    clock.PassiveClock
	start    time.Time
	reported time.Time
	done     int
	total    int64 // as far as the API server knows
}

func newProgress(log logr.Logger, clock clock.PassiveClock) *progress {
	now := clock.Now()
	return &progress{log: log, clock: clock, start: now, reported: now}
}

// page counts the objects of a page and, as far as it says, those that come after it.
func (p *progress) page(list *metav1.PartialObjectMetadataList) {
	p.total = int64(p.done + len(list.Items))
	if rest := list.GetRemainingItemCount(); rest != nil {
		p.total += *rest
	}
	if p.done == 0 {
		p.log.Info("Rewriting what is stored in another version", "objects", p.total)
	}
}

func (p *progress) one() {
	p.done++
	if p.clock.Since(p.reported) >= reportEvery {
		p.reported = p.clock.Now()
		p.log.Info("Still rewriting", "done", p.done, "objects", p.total)
	}
}

func (p *progress) end(rewritten int) {
	p.log.Info("Went through all objects", "rewritten", rewritten, "objects", p.done, "took", p.clock.Since(p.start).String())
}
