// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLease(t *testing.T) {
	l := &lease{renewed: noon}
	for _, step := range []struct {
		reason      string
		renewed     float64
		transitions int32
		want        lease
	}{
		{"what was renewed before is no news", -1, 0, lease{renewed: noon}},
		{"a renewal", 2, 0, lease{renewed: after(2), renewals: 1, gap: 2 * time.Second}},
		{"the same, heard again", 2, 0, lease{renewed: after(2), renewals: 1, gap: 2 * time.Second}},
		{"one that comes late", 7, 0, lease{renewed: after(7), renewals: 2, gap: 5 * time.Second}},
		{"one by somebody else", 8, 1, lease{renewed: after(8), renewals: 3, gap: 5 * time.Second, losses: 1, transitions: 1}},
		{"who keeps it", 9, 1, lease{renewed: after(9), renewals: 4, gap: 5 * time.Second, losses: 1, transitions: 1}},
	} {
		l.look(coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(after(step.renewed))), LeaseTransitions: &step.transitions})
		if diff := cmp.Diff(step.want, *l, cmp.AllowUnexported(lease{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.reason, diff)
		}
	}
}
