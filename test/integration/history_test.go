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
	"container.training/useless/test/history"
)

// maxLag is longer than watches are held back in tests: what an operator does may follow from what was that long ago.
const maxLag = 5 * time.Second

// judgeHistory fails a test for what must not have happened in its namespace.
func judgeHistory(t testing.TB, namespace string) {
	t.Helper()
	for _, fault := range faultsOf(t, namespace) {
		t.Error(fault)
	}
}

// faultsOf returns what must not have happened in a namespace. It is asked once.
func faultsOf(t testing.TB, namespace string) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	revisions, err := clusterOf(t).ledger.Take(ctx, namespace)
	if err != nil {
		t.Fatal(err)
	}
	checker := history.NewChecker(maxLag)
	for _, r := range revisions {
		checker.See(r)
	}
	return checker.Faults()
}

// TestDeletionsAreJudged has one switch of two deleted, which only users may do.
func TestDeletionsAreJudged(t *testing.T) {
	shared(t)
	config, err := clientcmd.BuildConfigFromFlags("", clusterOf(t).operatorKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.UserAgent = wrongdoer
	operator, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		who  string
		by   client.Client
		want []string
	}{
		{who: "a user", by: admin(t)},
		{who: "the operator", by: operator, want: []string{"it is deleted by the operator, and the Machine has 2 switches and asks for 2"}},
	} {
		t.Run(test.who, func(t *testing.T) {
			namespace := newNamespace(t)
			createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 2 })
			waitForPositions(t, namespace, "m", "dd", patience)
			if err := test.by.Delete(t.Context(), getSwitch(t, namespace, "m-1")); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, fault := range faultsOf(t, namespace) {
				_, what, _ := strings.Cut(fault.Error(), namespace+"/m-1: ")
				got = append(got, what)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
