// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"container.training/useless/api/useless/v1beta1"
)

// checkReplicaGone deletes the leader's Pod, as a node drain does, while a client uses both versions.
func checkReplicaGone(t *testing.T, namespace string) {
	t.Helper()
	user := newNamespace(t, "replica")
	checkInvariants(t, user)
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	polls := workInBothVersions(t, user)
	must(t, "kubectl", "delete", "pod", "-n", namespace, leader(t, namespace))
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/useless-controller-manager", "--timeout=2m")
	for _, p := range polls {
		p.mustNotHaveFailed(t)
	}
}

// leader returns the Pod that runs the controllers. After a leader was killed, it waits: the Lease names the killed Pod
// until the Lease expires.
func leader(t *testing.T, namespace string) string {
	t.Helper()
	var holder string
	eventually(t, time.Minute, func() string {
		lease := get[coordinationv1.Lease](t, "-n", namespace, "lease", "leader.useless.container.training")
		if lease.Spec.HolderIdentity != nil {
			holder, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_")
		}
		for _, pod := range get[corev1.PodList](t, "-n", namespace, "pods").Items {
			if pod.Name == holder && pod.DeletionTimestamp.IsZero() {
				return ""
			}
		}
		return "no running Pod holds the Lease"
	})
	return holder
}

// checkKills turns all switches of a machine up, and kills the leader while the leader turns them down. It repeats this
// ten times. Then all switches must be down.
func checkKills(t *testing.T, namespace string) {
	t.Helper()
	const kills, switches = 10, 20
	user := newNamespace(t, "kills")
	checkInvariants(t, user)
	mustRead(t, strings.Replace(newMachine, "count: 2", fmt.Sprintf("count: %d", switches), 1), "kubectl", "create", "-n", user, "-f", "-")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=1m")
	for range kills {
		pod := leader(t, namespace)
		eventually(t, time.Minute, func() string {
			machine := get[v1beta1.Machine](t, "-n", user, "machine", "machine")
			// Wait until the position is down. Before that, the operator still turns down the last switches of the
			// previous round, and this patch would change nothing.
			if machine.Spec.Position == v1beta1.PositionDown {
				must(t, "kubectl", "patch", "-n", user, "machine", "machine", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
			}
			if counts := machine.Status.Switches; counts.Up == 0 || counts.Down == 0 {
				return fmt.Sprintf("want some switches up and some down, got %+v", counts)
			}
			return ""
		})
		must(t, "kubectl", "delete", "pod", "-n", namespace, pod, "--force", "--grace-period=0")
	}
	must(t, "kubectl", "wait", "-n", user, "--for=jsonpath={.spec.position}=down", "machine/machine", "--timeout=2m")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=1m")
	if got := get[v1beta1.SwitchList](t, "-n", user, "switches").Items; len(got) != switches {
		t.Errorf("got %d switches, want %d", len(got), switches)
	}
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/useless-controller-manager", "--timeout=2m")
}

// checkAPIServerRestart kills the API server while a switch is up.
func checkAPIServerRestart(t *testing.T, namespace string) {
	t.Helper()
	if node == "" {
		t.Skip("this test kills the API server only on the node that make e2e starts")
	}
	// Namespaces of earlier tests may still be in deletion. After its restart, the API server may return a list of
	// kinds without the kinds of CustomResourceDefinitions. Kubernetes could then remove a namespace that still has
	// Machines.
	must(t, "kubectl", "wait", "--for=delete", newMachines, "--all", "--all-namespaces", "--timeout=2m")
	user := newNamespace(t, "restart")
	checkInvariants(t, user)
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	must(t, "kubectl", "patch", "-n", user, "switch", "machine-0", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
	must(t, node, "restart", "kube-apiserver")
	must(t, "kubectl", "wait", "-n", user, "--for=jsonpath={.spec.position}=down", "switch/machine-0", "--timeout=1m")
	checkFlip(t)
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/useless-controller-manager", "--timeout=2m")
	checkRouted(t, namespace)
}

// checkRouted waits until a new Service routes to the operator. After a restart of the API server, the service proxy
// reconnects only after a backoff. Until then, it may route to a replica that has stopped.
func checkRouted(t *testing.T, namespace string) {
	t.Helper()
	const name = "restarted"
	start := time.Now()
	must(t, "kubectl", "expose", "-n", namespace, "deployment/useless-controller-manager", "--name="+name, "--port=443", "--target-port=webhook")
	t.Cleanup(func() { cleanUp(t, "-n", namespace, "service", name) })
	address := net.JoinHostPort(get[corev1.Service](t, "-n", namespace, "service", name).Spec.ClusterIP, "443")
	eventually(t, time.Minute, func() string {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return fmt.Sprintf("a new Service does not route to the operator: %v", err)
		}
		_ = connection.Close()
		return ""
	})
	t.Logf("a new Service routed to the operator after %s", time.Since(start).Round(time.Millisecond))
}
