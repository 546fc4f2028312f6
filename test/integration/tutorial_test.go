// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"
	"time"

	"container.training/useless/api/useless/v1beta1"
)

// TestTutorial applies unchanged manifests of a tutorial about useless machines. The flip delay is the default of 5 s.
func TestTutorial(t *testing.T) {
	useSharedCluster(t)

	t.Run("a machine that is turned up is turned down after 5 s", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t)
		start := time.Now()
		mustKubectl(t, `
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata: {name: machine-1}
spec: {switchPosition: up}
`, "create", "-n", namespace, "-f", "-")
		waitForPositions(t, namespace, "machine-1", "u", defaultTimeout)
		eventually(t, defaultTimeout, func() (bool, string) {
			m := getMachine(t, namespace, "machine-1")
			return m.Spec.Position == v1beta1.PositionDown && m.Status.Positions == "d", fmt.Sprintf("%+v", m)
		})
		if took := time.Since(start); took < 5*time.Second {
			t.Errorf("the machine was turned down after %s, want at least 5s", took)
		}
	})

	t.Run("a new switch that is up replaces a switch that is down, and is turned down", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t)
		mustKubectl(t, `
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata: {name: machine-2}
spec: {switches: 3}
`, "create", "-n", namespace, "-f", "-")
		waitForPositions(t, namespace, "machine-2", "ddd", defaultTimeout)

		mustKubectl(t, `
apiVersion: useless.container.training/v1alpha1
kind: Switch
metadata: {generateName: switch-, labels: {machine: machine-2}}
spec: {position: up}
`, "create", "-n", namespace, "-f", "-")
		// There are now four switches. The operator deletes a switch that is down, and keeps the new switch, which is
		// up. The positions are in the order of the names, and the name of the new switch comes last.
		waitForPositions(t, namespace, "machine-2", "ddu", defaultTimeout)
		waitForPositions(t, namespace, "machine-2", "ddd", defaultTimeout)
	})
}
