// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/invariants"
)

// maxLag is longer than the longest delay of a watch in these tests. The operator may act on data that is outdated by
// at most maxLag.
const maxLag = 5 * time.Second

// checkInvariants fails a test if an invariant was violated in a namespace.
func checkInvariants(t testing.TB, namespace string) {
	t.Helper()
	for _, violation := range violationsIn(t, namespace) {
		t.Error(violation)
	}
}

// violationsIn returns the violations of invariants in a namespace. It takes the namespace's revisions from the
// invariants.Recorder, so a second call checks only newer revisions.
func violationsIn(t testing.TB, namespace string) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), defaultTimeout)
	defer cancel()
	revisions, err := clusterOf(t).ledger.Take(ctx, namespace)
	if err != nil {
		t.Fatal(err)
	}
	checker := invariants.NewChecker(maxLag)
	for _, r := range revisions {
		checker.Add(r)
	}
	return checker.Violations()
}

// TestInvariantCheckerReportsDeletion deletes one of a Machine's two switches, as a user and as the operator. The
// invariant checker must report a violation only for the operator.
func TestInvariantCheckerReportsDeletion(t *testing.T) {
	useSharedCluster(t)
	config, err := clientcmd.BuildConfigFromFlags("", clusterOf(t).operatorKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.UserAgent = negativeTestUserAgent
	operator, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		user   string
		client client.Client
		want   []string
	}{
		{user: "a user", client: admin(t)},
		{
			user: "the operator", client: operator,
			want: []string{"the operator deleted it: the Machine has 2 switches and asks for 2"},
		},
	} {
		t.Run(test.user, func(t *testing.T) {
			namespace := newNamespace(t)
			createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 2 })
			waitForPositions(t, namespace, "m", "dd", defaultTimeout)
			if err := test.client.Delete(t.Context(), getSwitch(t, namespace, "m-1")); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, violation := range violationsIn(t, namespace) {
				_, text, _ := strings.Cut(violation.Error(), namespace+"/m-1: ")
				got = append(got, text)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}
