// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestKubectlNames lists all kinds by their category and by their short names.
func TestKubectlNames(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	createMachine(t, namespace, "m", nil)
	mustKubectl(t, `
apiVersion: cloudnative.tw/v1alpha1
kind: VirtualMachine
metadata: {name: server}
spec: {resource: {cpu: 1, memory: 1G}}
`, "create", "-n", namespace, "-f", "-")
	waitForPositions(t, namespace, "m", "d", defaultTimeout)

	want := []string{
		"machine.useless.container.training/m",
		"switch.useless.container.training/m-0",
		"virtualmachine.cloudnative.tw/server",
	}
	for _, kinds := range []string{"useless", "um,usw,vm"} {
		got := strings.Fields(mustKubectl(t, "", "get", kinds, "-n", namespace, "-o", "name"))
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("kubectl get %s (-want +got)\n%s", kinds, diff)
		}
	}
}

// TestKubectlExplain checks that kubectl explain shows the description of a field of each version.
func TestKubectlExplain(t *testing.T) {
	useSharedCluster(t)
	const want = "in seconds that a switch stays up after the operator noticed it. The range is 0 to 86400"
	for version, field := range map[string]string{
		"useless.container.training/v1beta1":  "machine.spec.flip.delaySeconds",
		"useless.container.training/v1alpha1": "machine.spec.flipDelaySeconds",
	} {
		got := strings.Join(strings.Fields(mustKubectl(t, "", "explain", field, "--api-version="+version)), " ")
		if !strings.Contains(got, want) {
			t.Errorf("kubectl explain %s shows %q, want %q", field, got, want)
		}
	}
}
