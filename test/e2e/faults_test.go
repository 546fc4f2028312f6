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

// checkReplicaGone takes one of the two replicas away, as a node's drain does, while a client reads in both versions.
func checkReplicaGone(t *testing.T, namespace string) {
	t.Helper()
	user := newNamespace(t, "replica")
	judgeAtEnd(t, user)
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	polls := workInBothVersions(t, user)
	must(t, "kubectl", "delete", "pod", "-n", namespace, leader(t, namespace))
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/useless-controller-manager", "--timeout=2m")
	for _, p := range polls {
		p.mustNotHaveFailed(t)
	}
}

// leader is the pod that runs the controllers. A pod that was killed holds the Lease some time longer than it lives.
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
		return "a leader that lives"
	})
	return holder
}

// checkKills turns all switches of a machine up and kills the leader while it turns them down, ten times, and then looks
// whether any was forgotten.
func checkKills(t *testing.T, namespace string) {
	t.Helper()
	const kills, switches = 10, 20
	user := newNamespace(t, "kills")
	judgeAtEnd(t, user)
	mustRead(t, strings.Replace(newMachine, "count: 2", fmt.Sprintf("count: %d", switches), 1), "kubectl", "create", "-n", user, "-f", "-")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=1m")
	for range kills {
		pod := leader(t, namespace)
		must(t, "kubectl", "patch", "-n", user, "machine", "machine", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
		eventually(t, time.Minute, func() string {
			counts := get[v1beta1.Machine](t, "-n", user, "machine", "machine").Status.Switches
			if counts.Up == 0 || counts.Down == 0 {
				return fmt.Sprintf("some switches are up and some are down again: %+v", counts)
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
		t.Skip("the API server of somebody else's cluster is not ours to kill")
	}
	user := newNamespace(t, "restart")
	judgeAtEnd(t, user)
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	must(t, "kubectl", "patch", "-n", user, "switch", "machine-0", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
	must(t, node, "restart", "kube-apiserver")
	must(t, "kubectl", "wait", "-n", user, "--for=jsonpath={.spec.position}=down", "switch/machine-0", "--timeout=1m")
	checkFlip(t)
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/useless-controller-manager", "--timeout=2m")
	checkRouted(t, namespace)
}

// checkRouted waits until Services lead where they should. What sees to that asks an API server that was away again only after
// a while, longer than a replica that is replaced before it stops.
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
			return fmt.Sprintf("a way to the operator: %v", err)
		}
		_ = connection.Close()
		return ""
	})
	t.Logf("a new Service leads to the operator after %s", time.Since(start).Round(time.Millisecond))
}
