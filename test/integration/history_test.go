// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"container.training/useless/test/history"
)

// maxLag is longer than watches are held back in tests: what an operator does may follow from what was that long ago.
const maxLag = 5 * time.Second

// ledger has all that has happened to Machines and switches, in every namespace.
var ledger = struct {
	*history.Recorder

	mu       sync.Mutex
	checkers map[string]*history.Checker // by namespace
}{checkers: map[string]*history.Checker{}}

// startLedger begins to judge what becomes of Machines and switches. Each namespace is for one test, which fails for
// what is found there.
func startLedger(ctx context.Context) (err error) {
	ledger.Recorder, err = history.Record(ctx, plane.Etcd(), func(r history.Revision) {
		ledger.mu.Lock()
		defer ledger.mu.Unlock()
		namespace := r.Object.GetNamespace()
		if ledger.checkers[namespace] == nil {
			ledger.checkers[namespace] = history.NewChecker(maxLag)
		}
		ledger.checkers[namespace].See(r)
	})
	return err
}

// judgeHistory fails a test for what must not have happened in its namespace.
func judgeHistory(t testing.TB, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := ledger.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	ledger.mu.Lock()
	defer ledger.mu.Unlock()
	if checker := ledger.checkers[namespace]; checker != nil {
		for _, fault := range checker.Faults() {
			t.Error(fault)
		}
	}
	delete(ledger.checkers, namespace)
}
