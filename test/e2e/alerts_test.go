// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/test/internal/prometheus"
	"container.training/useless/test/internal/slowclient"
)

// sharedAlerts returns the alerts that fire in checkPrometheus while other checks run. Each value has the labels that
// the alert must have. operator and workloads are the namespaces of the operator and of the objects that cause the
// alerts.
func sharedAlerts(operator, workloads string) map[string]string {
	return map[string]string{
		"UselessMachinesNotScaled":    in(operator),
		"UselessOperatorFails":        in(operator) + `, controller=~"machine|schedule"`,
		"UselessScheduleFails":        in(operator) + `, kind="statefulsets"`,
		"UselessScheduleInvalid":      in(workloads) + `, kind="deployments"`,
		"UselessScheduleLate":         in(operator),
		"UselessScheduleOverridden":   in(workloads) + `, kind="deployments"`,
		"UselessVirtualMachineFailed": in(operator),
	}
}

// exclusiveAlerts fire in checkMonitoring while no other check runs, because their causes disturb the operator.
var exclusiveAlerts = []string{
	"UselessCertificateExpires", "UselessFlipsLate", "UselessMigrationFails", "UselessNoLeader", "UselessOperatorDown",
	"UselessWebhookFails", "UselessWebhookSlow",
}

// alertCauses are objects that cause alerts. A Pod has the name that a VirtualMachine needs for its own Pod. A Machine
// has more switches than the quota allows. The schedule of a Deployment is invalid. The API server rejects the stop of
// a StatefulSet. The other VirtualMachine and the other Deployment have no faults.
var alertCauses = `
apiVersion: v1
kind: Pod
metadata: {name: test-vm-vm}
spec:
  containers: [{name: desk, image: "registry.k8s.io/pause:3.10.1"}]
---` + virtualMachine + "---" + strings.ReplaceAll(virtualMachine, "test-vm", "measured") + "---" + newMachine + `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: invalid, annotations: {useless.container.training/stop-schedule: "Mon-Fri 25:00"}}
spec:
  replicas: 0` + selector + template + `---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: rejected}
spec:
  serviceName: rejected
  replicas: 1` + selector + template + "---" +
	strings.Replace(office, `3.10.1"`, `3.10.1", resources: {requests: {cpu: 1m, memory: 1Mi}}`, 1)

// manyFlips are two Machines whose switches are all turned up, and then all down. The operator drops some of their
// events: it emits at most 50 at once and two per second for one namespace. With one Machine, the flips on a slow
// computer could stay below this limit.
var manyFlips = aHundred + "---" + strings.Replace(aHundred, "many", "more", 1)

const aHundred = `
apiVersion: useless.container.training/v1beta1
kind: Machine
metadata: {name: many}
spec:
  switches: {count: 100}
  position: up
  flip: {delaySeconds: 0, intervalSeconds: 0}
`

// provoke turns switches up, and causes alerts. Twice, it sets the recorded time of the last stop to 30 hours ago, so
// that the stop is due again, and late. Each change also updates the savings: the first one creates their series, and
// the second one increases them. provoke returns the namespace of the objects that cause alerts.
func (p *scraper) provoke(t *testing.T) (namespace string) {
	t.Helper()
	namespace = newNamespace(t, "alerts")
	flips := newNamespace(t, "flips")
	must(t, "kubectl", "create", "quota", "-n", namespace, "switches", "--hard=count/switches.useless.container.training=1")
	must(t, "kubectl", "wait", "-n", namespace, "resourcequota/switches", "--for=jsonpath={.status.hard}", "--timeout=30s")
	mustRead(t, alertCauses, "kubectl", "create", "-n", namespace, "-f", "-")
	mustRead(t, newMachine+"---"+manyFlips, "kubectl", "create", "-n", flips, "-f", "-")
	const deployment, statefulSet = "deployment/office", "statefulset/rejected"
	rejectUpdates(t, namespace, "apps", "statefulsets", "object.spec.replicas > 0",
		"kubectl", "patch", "-n", namespace, statefulSet, "--type=merge", "-p", `{"spec":{"replicas":0}}`)
	for _, workload := range []string{deployment, statefulSet} {
		annotateSchedule(t, namespace, workload, clockTime(12*time.Hour), clockTime(-time.Hour))
	}
	for _, saved := range []string{"useless_schedule_saved_cpu_cores", "useless_schedule_saved_cpu_core_seconds_total"} {
		p.awaitSeries(t, fmt.Sprintf("%s{namespace=%q} > 0", saved, namespace))
		must(t, "kubectl", "annotate", "-n", namespace, "--overwrite", deployment,
			"useless.container.training/last-schedule-time="+time.Now().UTC().Add(-30*time.Hour).Format(time.RFC3339))
	}
	turnUpAndWait(t, flips)
	must(t, "kubectl", "scale", "-n", namespace, deployment, "--replicas=1")
	return namespace
}

// rejectUpdates makes the API server reject updates of a resource in a namespace, unless they satisfy a CEL expression.
// probe is a kubectl command for such an update. rejectUpdates returns when the API server rejects it. The returned
// function allows the updates again.
func rejectUpdates(t *testing.T, namespace, group, resource, expression string, probe ...string) (allow func()) {
	t.Helper()
	name := namespace + "-" + resource
	allow = func() {
		cleanUp(t, "validatingadmissionpolicy,validatingadmissionpolicybinding", name)
	}
	t.Cleanup(allow)
	mustRead(t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[2]s}}
    resourceRules: [{apiGroups: [%[3]q], apiVersions: ["*"], resources: [%[4]s], operations: [UPDATE]}]
  validations: [{expression: %[5]q}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`, name, namespace, group, resource, expression), "kubectl", "create", "-f", "-")
	eventually(t, time.Minute, func() string {
		output, err := quietly("", append(probe, "--dry-run=server")...)
		if err == nil || !strings.Contains(output, "ValidatingAdmissionPolicy '"+name+"'") {
			return fmt.Sprintf("the policy %s does not reject an update, error %v\n%s", name, err, output)
		}
		return ""
	})
	return allow
}

// rejectOperator makes the API server reject the operator's updates of a resource in a namespace. object is the name of
// an object of this resource, for the probe.
func rejectOperator(t *testing.T, namespace, group, resource, object string) (allow func()) {
	t.Helper()
	accounts := "system:serviceaccounts:" + system
	return rejectUpdates(t, namespace, group, resource, fmt.Sprintf("!(%q in request.userInfo.groups)", accounts),
		"kubectl", "annotate", "-n", namespace, resource, object, "probe=true",
		"--as=probe", "--as-group=system:masters", "--as-group="+accounts)
}

// checkMonitoring makes the exclusiveAlerts fire, one after the other. On a cluster without the node of make e2e, it
// only checks the rotation of the certificate.
func checkMonitoring(t *testing.T) {
	t.Helper()
	if node == "" {
		checkRotation(t, nil)
		return
	}
	shared := slices.Collect(maps.Keys(sharedAlerts(system, "")))
	all := slices.Sorted(slices.Values(slices.Concat(shared, exclusiveAlerts)))
	if diff := cmp.Diff(slices.Sorted(maps.Keys(prometheus.Alerts(t))), all); diff != "" {
		t.Errorf("the alerts that this test expects (-want +got):\n%s", diff)
	}
	p := startPrometheus(t, system, 2)
	checkRotation(t, func() { p.awaitAlert(t, "UselessCertificateExpires", in(system)) })
	p.awaitUp(t)
	p.stopOperator(t)
	p.blockWebhook(t)
	p.failUsageRequests(t)
	p.awaitPanels(t, exclusivePanels...)
	p.delayWrites(t)
	p.awaitSeries(t, `useless_storage_migration{state="complete"} == 1`)
	for _, alert := range exclusiveAlerts {
		if !p.Alerts[alert] {
			t.Errorf("the alert %s did not fire", alert)
		}
	}
}

// stopOperator stops all Pods while switches are up, and starts Pods that cannot become the leader. Then it releases
// the Lease. The new leader turns the switches down, but it cannot rewrite the Machine in the storage version.
// stopOperator does not delete the Lease, because other checks read it before a Pod creates it again.
func (p *scraper) stopOperator(t *testing.T) {
	t.Helper()
	const deployment, lease = "deployment/useless-controller-manager", "leader.useless.container.training"
	namespace := newNamespace(t, "late")
	release := []string{"kubectl", "patch", "-n", system, "lease", lease, "--type=merge", "-p", `{"spec":{"holderIdentity":"","leaseDurationSeconds":15}}`}
	t.Cleanup(func() {
		if t.Failed() { // the next tests need an operator that removes finalizers
			_, _ = quietly("", release...)
			_, _ = quietly("", "kubectl", "scale", "-n", system, deployment, "--replicas=2")
		}
	})
	due := turnUpLater(t, namespace)
	must(t, "kubectl", "scale", "-n", system, deployment, "--replicas=0")
	p.awaitAlert(t, "UselessOperatorDown", `severity="critical"`) // it has no labels of a series, because there is none
	must(t, "kubectl", "wait", "-n", system, "--for=delete", "pods", "-l", "app.kubernetes.io/name=useless-operator", "--timeout=1m")
	allow := rejectOperator(t, namespace, "useless.container.training", "machines", "machine")
	must(t, "kubectl", "patch", "crd", crds[0], "--subresource=status", "--type=merge", "-p", `{"status":{"storedVersions":["v1alpha1","v1beta1"]}}`)
	must(t, "kubectl", "patch", "-n", system, "lease", lease, "--type=merge", "-p", `{"spec":{"holderIdentity":"another-process","leaseDurationSeconds":3600}}`)
	must(t, "kubectl", "scale", "-n", system, deployment, "--replicas=2")
	p.awaitUp(t)
	p.awaitAlert(t, "UselessNoLeader", in(system))
	time.Sleep(time.Until(due.Add(8 * time.Second))) // UselessFlipsLate needs a delay of more than 5 s
	must(t, release...)
	leader(t, system)
	must(t, "kubectl", "wait", "-n", namespace, "--for=jsonpath={.spec.position}=down", "switch", "--all", "--timeout=1m")
	p.awaitAlert(t, "UselessFlipsLate", in(system))
	p.awaitAlert(t, "UselessMigrationFails", in(system))
	allow()
}

// turnUpLater turns all switches of a new Machine up. It returns when the operator has noticed them, before they are
// due. All switches are due at the returned time or earlier.
func turnUpLater(t *testing.T, namespace string) (due time.Time) {
	t.Helper()
	const delay = 15 * time.Second
	machine := strings.NewReplacer("count: 2", "count: 5", "delaySeconds: 3", fmt.Sprintf("delaySeconds: %.0f", delay.Seconds()),
		"intervalSeconds: 1", "intervalSeconds: 0").Replace(newMachine)
	mustRead(t, machine, "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	for i := range 5 {
		must(t, "kubectl", "patch", "-n", namespace, "switch", fmt.Sprintf("machine-%d", i), "--type=merge", "-p", `{"spec":{"position":"up"}}`)
	}
	must(t, "kubectl", "wait", "-n", namespace, "--for=jsonpath={.status.seenAt}", "switch", "--all", "--timeout=10s")
	return time.Now().Add(delay)
}

// blockWebhook makes the webhooks of a Pod fail until the alerts fire. The first failure creates the series of the
// errors, and the second failure increases it.
func (p *scraper) blockWebhook(t *testing.T) {
	t.Helper()
	address := net.JoinHostPort(operatorPods(t, system)[0].Status.PodIP, "9443")
	eventually(t, time.Minute, func() string {
		slowclient.Block(t, address)
		return p.silent(t, "UselessWebhookFails") + p.silent(t, "UselessWebhookSlow")
	})
	p.awaitAlert(t, "UselessWebhookFails", in(system))
	p.awaitAlert(t, "UselessWebhookSlow", in(system))
}

// failUsageRequests removes the metrics API while a VirtualMachine runs.
func (p *scraper) failUsageRequests(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "usage")
	mustRead(t, virtualMachine, "kubectl", "create", "-n", namespace, "-f", "-")
	awaitActive(t, namespace)
	removeMetricsAPI(t)
	p.awaitSeries(t, "useless_vm_usage_errors_total > 0")
}

// delayWrites registers a webhook that never answers. The API server calls it for each new Switch, and waits 5 s. So all
// workers are busy, and more Machines wait in the queue.
func (p *scraper) delayWrites(t *testing.T) {
	t.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the API server is in the same network
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	namespace := newNamespace(t, "busy")
	t.Cleanup(func() { cleanUp(t, "validatingwebhookconfiguration", "silent") })
	mustRead(t, strings.NewReplacer("ADDRESS", silent.Addr().String(), "NAMESPACE", namespace).Replace(silentWebhook), "kubectl", "create", "-f", "-")
	eventually(t, time.Minute, func() string {
		start := time.Now()
		_, err := try(t, probeSwitch, "kubectl", "create", "--dry-run=server", "-n", namespace, "-f", "-")
		if err == nil && time.Since(start) > 4*time.Second {
			return ""
		}
		return fmt.Sprintf("the API server does not wait for the webhook yet, error %v", err)
	})
	var machines strings.Builder
	for i := range 100 { // more than there are workers
		name := fmt.Sprintf("machine-%d", i)
		machines.WriteString(strings.NewReplacer("name: machine", "name: "+name, "machine: machine", "machine: "+name).Replace(newMachine) + "---")
	}
	mustRead(t, machines.String(), "kubectl", "create", "-n", namespace, "-f", "-")
	p.awaitPanels(t, busyPanels...)
}

const silentWebhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: silent}
webhooks:
- name: silent.example.com
  clientConfig: {url: "https://ADDRESS"}
  timeoutSeconds: 5
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
  rules:
  - {apiGroups: [useless.container.training], apiVersions: [v1beta1], resources: [switches], operations: [CREATE]}
`

const probeSwitch = `
apiVersion: useless.container.training/v1beta1
kind: Switch
metadata: {name: probe}
spec: {position: down}
`
