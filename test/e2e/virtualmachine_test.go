// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"container.training/useless/api/cloudnative/v1alpha1"
)

// virtualMachine has requests that are small enough for any node.
const virtualMachine = `
apiVersion: cloudnative.tw/v1alpha1
kind: VirtualMachine
metadata: {name: test-vm}
spec:
  resource: {cpu: 50m, memory: 32Mi, rootDisk: 64Mi}
`

// checkVirtualMachine creates, resizes, stops, starts and deletes a VirtualMachine.
func checkVirtualMachine(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "vm")
	must(t, "kubectl", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	mustRead(t, virtualMachine, "kubectl", "create", "-n", namespace, "-f", "-")
	first := awaitActive(t, namespace)
	if first.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("the Pod's QoS class is %s, want Guaranteed", first.Status.QOSClass)
	}
	checkRow(t, namespace, `test-vm +Active +(\d+ +\d+ +)?\d+s`)

	patchVirtualMachine(t, namespace, `{"spec":{"resource":{"cpu":"100m","memory":"48Mi"}}}`)
	for _, wanted := range []string{"limits.cpu}=100m", "limits.memory}=48Mi", "requests.cpu}=100m", "requests.memory}=48Mi"} {
		must(t, "kubectl", "wait", "-n", namespace, "pod/test-vm-vm", "--for=jsonpath={.status.containerStatuses[0].resources."+wanted, "--timeout=1m")
	}
	awaitResizing(t, namespace, v1alpha1.ReasonUpToDate)
	node := get[corev1.Node](t, "node", first.Spec.NodeName)
	// The node does not have this much free CPU, because other Pods request some of it.
	patchVirtualMachine(t, namespace, fmt.Sprintf(`{"spec":{"resource":{"cpu":%q}}}`, node.Status.Allocatable.Cpu()))
	awaitResizing(t, namespace, v1alpha1.ReasonDeferred)
	checkRow(t, namespace, `test-vm +Active +(\d+ +\d+ +)?\d+s`)
	patchVirtualMachine(t, namespace, `{"spec":{"resource":{"cpu":"100m"}}}`)
	awaitResizing(t, namespace, v1alpha1.ReasonUpToDate)
	checkSamePod(t, namespace, first)

	patchVirtualMachine(t, namespace, `{"spec":{"action":"inactive"}}`)
	must(t, "kubectl", "wait", "-n", namespace, "vm/test-vm", "--for=jsonpath={.status.phase}=Stopped", "--timeout=1m")
	checkNoPods(t, namespace)
	checkRow(t, namespace, `test-vm +Stopped +\d+s`)

	patchVirtualMachine(t, namespace, `{"spec":{"action":"active"}}`)
	if second := awaitActive(t, namespace); second.UID == first.UID {
		t.Error("the new Pod has the UID of the stopped Pod")
	}

	must(t, "kubectl", "delete", "-n", namespace, "vm", "test-vm", "--timeout=1m")
	checkNoPods(t, namespace)
	checkEvents(t, namespace, "virtualmachine/test-vm", `Normal +Created`, `Normal +Started`, `Normal +Resized`, `Normal +Stopped`)
}

// checkUsage compares the usage in the VirtualMachine's status with the metrics API. Then it removes the metrics API.
// It does not delete the VirtualMachine.
func checkUsage(t *testing.T, namespace string) {
	t.Helper()
	mustRead(t, virtualMachine, "kubectl", "create", "-n", namespace, "-f", "-")
	awaitActive(t, namespace)
	must(t, "kubectl", "wait", "-n", namespace, "vm/test-vm", "--for=condition=UsageAvailable", "--timeout=2m")
	eventually(t, time.Minute, func() string { // the two values may come from different measurements
		shown := get[v1alpha1.VirtualMachine](t, "-n", namespace, "vm", "test-vm").Status.Server.Usage
		if measured := measure(t, namespace); shown == nil || !closeTo(shown, measured) {
			return fmt.Sprintf("the status shows %+v, the metrics API %+v", shown, measured)
		}
		return ""
	})
	checkRow(t, namespace, `test-vm +Active +\d+ +\d+ +\d+s`)

	removeMetricsAPI(t)
	must(t, "kubectl", "wait", "-n", namespace, "vm/test-vm", "--for=condition=UsageAvailable=Unknown", "--timeout=2m")
	vm := get[v1alpha1.VirtualMachine](t, "-n", namespace, "vm", "test-vm")
	if condition := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionUsageAvailable); condition.Reason != v1alpha1.ReasonMetricsAPIUnavailable {
		t.Errorf("the condition's reason is %s, want %s", condition.Reason, v1alpha1.ReasonMetricsAPIUnavailable)
	}
	if vm.Status.Phase != v1alpha1.PhaseActive || vm.Status.Server.Usage != nil {
		t.Errorf("want phase Active without usage, got %+v", vm.Status)
	}
	checkRow(t, namespace, `test-vm +Active +\d+s`)
}

// removeMetricsAPI removes the metrics API until the end of the test.
func removeMetricsAPI(t *testing.T) {
	t.Helper()
	const metricsAPI = "v1beta1.metrics.k8s.io"
	service := get[unstructured.Unstructured](t, "apiservice", metricsAPI)
	delete(service.Object, "status")
	service.Object["metadata"] = map[string]any{"name": metricsAPI}
	manifest, err := service.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	must(t, "kubectl", "delete", "apiservice", metricsAPI)
	t.Cleanup(func() { mustRead(t, string(manifest), "kubectl", "create", "-f", "-") })
}

// measure returns the Pod's usage from the metrics API, in percent of its limits.
func measure(t *testing.T, namespace string) v1alpha1.UsageStatus {
	t.Helper()
	type container struct{ Usage corev1.ResourceList }
	used := get[struct{ Containers []container }](t, "-n", namespace, "pods.metrics.k8s.io", "test-vm-vm").Containers[0].Usage
	limits := get[corev1.Pod](t, "-n", namespace, "pod", "test-vm-vm").Spec.Containers[0].Resources.Limits
	percent := func(name corev1.ResourceName) int32 {
		use, limit := used[name], limits[name]
		return int32(math.Round(100 * use.AsApproximateFloat64() / limit.AsApproximateFloat64()))
	}
	return v1alpha1.UsageStatus{CPU: percent(corev1.ResourceCPU), Memory: percent(corev1.ResourceMemory)}
}

func closeTo(shown *v1alpha1.UsageStatus, measured v1alpha1.UsageStatus) bool {
	near := func(a, b int32) bool { return a-b <= 1 && b-a <= 1 }
	return near(shown.CPU, measured.CPU) && near(shown.Memory, measured.Memory)
}

// awaitActive waits until the VirtualMachine is active, and returns its Pod.
func awaitActive(t *testing.T, namespace string) *corev1.Pod {
	t.Helper()
	must(t, "kubectl", "wait", "-n", namespace, "vm/test-vm", "--for=jsonpath={.status.phase}=Active", "--timeout=1m")
	pod := get[corev1.Pod](t, "-n", namespace, "pod", "test-vm-vm")
	want := &v1alpha1.ServerStatus{ID: pod.UID, Name: pod.Name, State: v1alpha1.ServerRunning, Node: pod.Spec.NodeName}
	got := get[v1alpha1.VirtualMachine](t, "-n", namespace, "vm", "test-vm").Status.Server
	if got != nil {
		got.StartTime, got.Usage = nil, nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status.server (-want +got):\n%s", diff)
	}
	return &pod
}

// checkSamePod checks that the Pod was neither replaced nor restarted.
func checkSamePod(t *testing.T, namespace string, before *corev1.Pod) {
	t.Helper()
	type identity struct {
		pod       types.UID
		container string
		restarts  int32
	}
	identify := func(pod *corev1.Pod) identity {
		return identity{pod.UID, pod.Status.ContainerStatuses[0].ContainerID, pod.Status.ContainerStatuses[0].RestartCount}
	}
	after := get[corev1.Pod](t, "-n", namespace, "pod", "test-vm-vm")
	if got, want := identify(&after), identify(before); got != want {
		t.Errorf("the Pod was replaced or restarted: got %+v, want %+v", got, want)
	}
}

func checkNoPods(t *testing.T, namespace string) {
	t.Helper()
	if output := stdout(t, "kubectl", "get", "-n", namespace, "pods", "-o", "name"); output != "" {
		t.Errorf("want no Pods, got %s", output)
	}
}

// checkRow compares the VirtualMachine's row in the output of kubectl get with a pattern.
func checkRow(t *testing.T, namespace, want string) {
	t.Helper()
	output := stdout(t, "kubectl", "get", "-n", namespace, "vm", "test-vm")
	if !regexp.MustCompile(`^NAME +STATUS +CPU +MEMORY +AGE\s+` + want + `\s*$`).MatchString(output) {
		t.Errorf("want %s, got:\n%s", want, output)
	}
}

// awaitResizing waits until the condition Resizing has this reason.
func awaitResizing(t *testing.T, namespace, reason string) {
	t.Helper()
	must(t, "kubectl", "wait", "-n", namespace, "vm/test-vm", `--for=jsonpath={.status.conditions[?(@.type=="Resizing")].reason}=`+reason, "--timeout=1m")
}

func patchVirtualMachine(t *testing.T, namespace, patch string) {
	t.Helper()
	must(t, "kubectl", "patch", "-n", namespace, "vm", "test-vm", "--type=merge", "-p", patch)
}
