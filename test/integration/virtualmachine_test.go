// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/internal/controller/virtualmachine"
)

func TestVirtualMachine(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a virtual machine becomes active and its Pod has the requested resources", testVirtualMachineActive},
		{"a Pod passes the restricted Pod Security profile", testVirtualMachineRestricted},
		{"a virtual machine without a suitable node stays Creating until there is one", testVirtualMachineUnschedulable},
		{"a virtual machine is Failed while its image cannot be pulled", testVirtualMachineImagePull},
		{"a virtual machine is Failed while its container crashes", testVirtualMachineCrashLoop},
		{"an evicted Pod is replaced after a backoff", testVirtualMachineEvicted},
		{"a Pod that a user deletes is replaced immediately", testVirtualMachineDeletedByHand},
		{"a Pod that loses its label is replaced", testVirtualMachineUnlabelled},
		{"a Pod is deleted if admission removes its label", testVirtualMachineNotLabelled},
		{"a Pod that a quota rejects is created when the quota allows it", testVirtualMachineQuota},
		{"a virtual machine reports an unreachable webhook until the webhook is removed", testVirtualMachineWebhookDown},
		{"an unrelated Pod with the same name is not changed and blocks the virtual machine", testVirtualMachineNameConflict},
		{"an unrelated Pod with the same name and label is not changed, either", testVirtualMachineNameConflictLabelled},
		{"an inactive virtual machine has no Pod", testVirtualMachineInactive},
		{"a virtual machine can go from every phase to every other", testVirtualMachinePhases},
		{"a virtual machine that is turned on and off has at most one Pod", testVirtualMachineToggled},
		{"a paused virtual machine is not changed", testVirtualMachinePaused},
		{"virtual machines of the same name in two namespaces do not affect each other", testVirtualMachineNamespaces},
	})
}

func TestVirtualMachineResize(t *testing.T) {
	useSharedCluster(t)
	if olderThan(t, 33, noResize) {
		runParallel(t, []namespacedTest{
			{"if Kubernetes cannot resize in place, the condition Resizing reports it, and a restart applies the new size", testVirtualMachineNotResizable},
		})
		return
	}
	runParallel(t, []namespacedTest{
		{"a Pod is resized in place", testVirtualMachineResized},
		{"a Pod without a node is resized, too", testVirtualMachineResizedEarly},
		{"the condition Resizing is True while the node cannot do a resize", testVirtualMachineNotResized},
		{"the condition Resizing is True while a quota rejects a resize", testVirtualMachineResizeRefused},
	})
}

func TestVirtualMachineDeletion(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a deleted virtual machine is removed after its Pod, in every phase", testVirtualMachineDeletedInEveryPhase},
		{"foreground deletion removes the Pod first and does not replace it", testVirtualMachineForeground},
		{"orphan deletion keeps the Pod", testVirtualMachineOrphan},
		{"a paused virtual machine can be deleted and its Pod is deleted, too", testVirtualMachinePausedDeleted},
		{"a virtual machine with a name conflict can be deleted", testVirtualMachineConflictDeleted},
		{"a virtual machine that is recreated immediately gets a new Pod", testVirtualMachineRecreated},
	})
}

// node returns the simulated node. It starts the node at the first call.
func node(t *testing.T) *standin.Node {
	t.Helper()
	standIn, err := clusterOf(t).node()
	if err != nil {
		t.Fatal(err)
	}
	return standIn
}

func newVirtualMachine(namespace, name string) *v1alpha1.VirtualMachine {
	return &v1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VirtualMachineSpec{Resource: v1alpha1.ResourceSpec{
			CPU: apiresource.MustParse("2"), Memory: apiresource.MustParse("4G"),
		}},
	}
}

// createVirtualMachine creates a VirtualMachine with two CPUs. fate defines how the simulated node handles the Pod.
func createVirtualMachine(t *testing.T, namespace, name string, fate standin.Fate) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := newVirtualMachine(namespace, name)
	node(t).Set(podKey(vm), fate)
	if err := admin(t).Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	return vm
}

// podKey returns the namespace and the name of the VirtualMachine's Pod.
func podKey(vm *v1alpha1.VirtualMachine) client.ObjectKey {
	return client.ObjectKey{Namespace: vm.Namespace, Name: vm.Name + "-vm"}
}

func getVirtualMachine(t *testing.T, namespace, name string) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := &v1alpha1.VirtualMachine{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, vm); err != nil {
		t.Fatal(err)
	}
	return vm
}

// getPod returns the VirtualMachine's Pod.
func getPod(t *testing.T, vm *v1alpha1.VirtualMachine) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := admin(t).Get(t.Context(), podKey(vm), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// waitForReason waits until a VirtualMachine has a phase and reason for its current generation, and returns it. It also
// checks the condition Ready.
func waitForReason(t *testing.T, vm *v1alpha1.VirtualMachine, phase v1alpha1.Phase, reason string) *v1alpha1.VirtualMachine {
	t.Helper()
	var got *v1alpha1.VirtualMachine
	eventually(t, defaultTimeout, func() (bool, string) {
		got = getVirtualMachine(t, vm.Namespace, vm.Name)
		return got.Status.Phase == phase && got.Status.Reason == reason && got.Status.ObservedGeneration == got.Generation,
			fmt.Sprintf("the phase is not %s with reason %s: status %+v", phase, reason, got.Status)
	})
	value := metav1.ConditionFalse
	if reason == v1alpha1.ReasonServerReady {
		value = metav1.ConditionTrue
	}
	checkCondition(t, got, v1alpha1.ConditionReady, value, reason)
	return got
}

func waitForActive(t *testing.T, vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachine {
	t.Helper()
	return waitForReason(t, vm, v1alpha1.PhaseActive, v1alpha1.ReasonServerReady)
}

func checkCondition(t *testing.T, vm *v1alpha1.VirtualMachine, conditionType string, value metav1.ConditionStatus, reason string) {
	t.Helper()
	condition := meta.FindStatusCondition(vm.Status.Conditions, conditionType)
	if condition == nil || condition.Status != value || condition.Reason != reason {
		t.Errorf("condition %s of %s is %+v, want %s with reason %s", conditionType, vm.Name, condition, value, reason)
	}
}

func waitForCondition(t *testing.T, vm *v1alpha1.VirtualMachine, conditionType string, value metav1.ConditionStatus, reason string) *v1alpha1.VirtualMachine {
	t.Helper()
	var got *v1alpha1.VirtualMachine
	eventually(t, defaultTimeout, func() (bool, string) {
		got = getVirtualMachine(t, vm.Namespace, vm.Name)
		condition := meta.FindStatusCondition(got.Status.Conditions, conditionType)
		return condition != nil && condition.Status == value && condition.Reason == reason, fmt.Sprintf("condition %s is %+v", conditionType, condition)
	})
	return got
}

func setAction(t *testing.T, vm *v1alpha1.VirtualMachine, action v1alpha1.Action) {
	t.Helper()
	mergePatch(t, newVirtualMachine(vm.Namespace, vm.Name), `{"spec":{"action":%q}}`, action)
}

func recordPods(t *testing.T, namespace string) *recording[*corev1.Pod] {
	t.Helper()
	return record[*corev1.Pod](t, &corev1.PodList{}, namespace)
}

func recordVirtualMachines(t *testing.T, namespace string) *recording[*v1alpha1.VirtualMachine] {
	t.Helper()
	return record[*v1alpha1.VirtualMachine](t, &v1alpha1.VirtualMachineList{}, namespace)
}

func testVirtualMachineActive(t *testing.T, namespace string) {
	node(t)
	manifest := strings.Replace(documented(t, "virtualmachine.md"), "metadata:\n", "metadata:\n  labels: {app: shop}\n", 1)
	mustKubectl(t, manifest, "apply", "-n", namespace, "-f", "-")
	vm := waitForActive(t, newVirtualMachine(namespace, "test-vm"))
	if vm.Labels["app"] != "shop" {
		t.Fatalf("the virtual machine lacks the label app=shop, which this test needs: %s", manifest)
	}
	pod := getPod(t, vm)

	if pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("the QoS class of the Pod is %s, want %s", pod.Status.QOSClass, corev1.PodQOSGuaranteed)
	}
	if diff := cmp.Diff(map[string]string{v1alpha1.VirtualMachineLabel: "test-vm"}, pod.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(corev1.ResourceList{
		corev1.ResourceCPU: apiresource.MustParse("2"), corev1.ResourceMemory: apiresource.MustParse("4G"), corev1.ResourceEphemeralStorage: apiresource.MustParse("40G"),
	}, pod.Spec.Containers[0].Resources.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if len(pod.Spec.Volumes) > 0 || pod.Spec.Containers[0].Image != virtualmachine.DefaultImage || !metav1.IsControlledBy(pod, vm) {
		t.Errorf("the Pod has volumes, or the wrong image or controller: %+v", pod)
	}
	want := &v1alpha1.ServerStatus{ID: pod.UID, Name: "test-vm-vm", Node: standin.NodeName, State: v1alpha1.ServerRunning, StartTime: vm.Status.Server.StartTime}
	if diff := cmp.Diff(want, vm.Status.Server); diff != "" || want.StartTime == nil || vm.Status.LastUpdateTime == nil {
		t.Errorf("status.server (-want +got):\n%s", diff)
	}
	checkCondition(t, vm, v1alpha1.ConditionScheduled, metav1.ConditionTrue, v1alpha1.ReasonScheduled)
	checkCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionFalse, v1alpha1.ReasonUpToDate)
	// This control plane has no metrics API.
	waitForCondition(t, vm, v1alpha1.ConditionUsageAvailable, metav1.ConditionUnknown, v1alpha1.ReasonMetricsAPIUnavailable)
	waitForEvent(t, vm, v1alpha1.EventCreated)
	waitForEvent(t, vm, v1alpha1.EventStarted)
}

func testVirtualMachineRestricted(t *testing.T, namespace string) {
	mergePatch(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	// The API server enforces the profile after its admission plugin has seen the label.
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Create(t.Context(), newPod(namespace, "", nil), client.DryRunAll)
		return apierrors.IsForbidden(err), fmt.Sprintf("a Pod that violates the restricted profile is not rejected: %v", err)
	})
	waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
}

// newPod returns a Pod that does not belong to a VirtualMachine. If name is empty, the API server generates a name.
func newPod(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, GenerateName: "pod-", Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/main:1"}}},
	}
}

func testVirtualMachineUnschedulable(t *testing.T, namespace string) {
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{Unschedulable: "0/3 nodes are available: 3 Insufficient cpu."})
	vm = waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable)
	checkCondition(t, vm, v1alpha1.ConditionScheduled, metav1.ConditionFalse, corev1.PodReasonUnschedulable)
	if !strings.Contains(vm.Status.Message, "Insufficient cpu") || vm.Status.Server.State != v1alpha1.ServerWaiting {
		t.Errorf("unexpected status %+v", vm.Status)
	}
	waitForEvent(t, vm, v1alpha1.EventUnschedulable)
	node(t).Set(podKey(vm), standin.Fate{})
	waitForActive(t, vm)
}

func testVirtualMachineImagePull(t *testing.T, namespace string) {
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{Waiting: "ImagePullBackOff"})
	vm = waitForReason(t, vm, v1alpha1.PhaseFailed, "ImagePullBackOff")
	failed := getPod(t, vm)
	node(t).Set(podKey(vm), standin.Fate{})
	vm = waitForActive(t, vm)
	// The kubelet retries the pull. So the operator must neither replace the Pod nor count a failure.
	if pod := getPod(t, vm); pod.UID != failed.UID || vm.Status.Failures != 0 {
		t.Errorf("status.failures is %d, want 0; the Pod was replaced: %t", vm.Status.Failures, pod.UID != failed.UID)
	}
	// The virtual machine must also become Failed if it was active and its image cannot be pulled again.
	node(t).Set(podKey(vm), standin.Fate{Waiting: "ErrImagePull"})
	waitForReason(t, vm, v1alpha1.PhaseFailed, "ErrImagePull")
}

func testVirtualMachineCrashLoop(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	for range 3 {
		node(t).Set(podKey(vm), standin.Fate{Waiting: "CrashLoopBackOff"})
		waitForReason(t, vm, v1alpha1.PhaseFailed, "CrashLoopBackOff")
		waitForEvent(t, vm, v1alpha1.EventCrashLoop)
		node(t).Set(podKey(vm), standin.Fate{})
		waitForActive(t, vm)
	}
	if events := eventsOn(t, vm, v1alpha1.EventCrashLoop); len(events) != 1 {
		t.Errorf("the crashes of one Pod caused %d events, want 1", len(events))
	}
	if started := eventsOn(t, vm, v1alpha1.EventStarted); len(started) != 1 {
		t.Errorf("there are %d events about the start of the Pod, want 1", len(started))
	}
}

func testVirtualMachineEvicted(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	evicted := getPod(t, vm)
	pods := recordPods(t, namespace)
	node(t).Set(podKey(vm), standin.Fate{Evicted: "The node was low on memory."})
	vm = waitForReason(t, vm, v1alpha1.PhaseFailed, "Evicted")
	if vm.Status.Failures != 1 || vm.Status.RetryTime == nil || !strings.Contains(vm.Status.Message, "low on memory") {
		t.Errorf("unexpected status %+v", vm.Status)
	}
	node(t).Set(podKey(vm), standin.Fate{})
	pods.untilDeleted(t, evicted.Name)
	if now := time.Now(); now.Before(vm.Status.RetryTime.Time) {
		t.Errorf("the Pod was replaced at %s, before status.retryTime %s", now, vm.Status.RetryTime)
	}
	vm = waitForActive(t, vm)
	if vm.Status.Failures != 1 || vm.Status.RetryTime != nil || vm.Status.Server.ID == evicted.UID {
		t.Errorf("unexpected status %+v", vm.Status)
	}
	waitForEvent(t, vm, v1alpha1.EventDeleted)
}

func testVirtualMachineDeletedByHand(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{Lingering: true}))
	first := getPod(t, vm)
	mustKubectl(t, "", "delete", "pod", first.Name, "-n", namespace, "--wait=false")
	waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonReplacing)
	pods := recordPods(t, namespace)
	node(t).Set(podKey(vm), standin.Fate{})
	pods.untilDeleted(t, first.Name)
	vm = waitForActive(t, vm)
	if vm.Status.Server.ID == first.UID || mostAtOnce(pods.all(t)) > 1 {
		t.Errorf("status.server is %+v, want a new Pod, and never two Pods at the same time", vm.Status.Server)
	}
}

func testVirtualMachineUnlabelled(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	unlabel := func() {
		mustKubectl(t, "", "label", "pod", podKey(vm).Name, "-n", namespace, v1alpha1.VirtualMachineLabel+"-")
	}
	first := vm.Status.Server.ID
	unlabel()
	eventually(t, defaultTimeout, func() (bool, string) {
		vm = getVirtualMachine(t, namespace, "vm")
		return vm.Status.Reason == v1alpha1.ReasonServerReady && vm.Status.Server.ID != first,
			fmt.Sprintf("the Pod is not replaced: status %+v", vm.Status)
	})
	if labels := getPod(t, vm).Labels; labels[v1alpha1.VirtualMachineLabel] != "vm" {
		t.Errorf("the new Pod has labels %v", labels)
	}
	unlabel()
	stop(t, vm)
}

func testVirtualMachineNotLabelled(t *testing.T, namespace string) {
	if olderThan(t, 36, noMutatingPolicies) {
		t.Skip("the API server has no MutatingAdmissionPolicy v1")
	}
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}}},
			},
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/metadata/labels", value: {"other": "label"}}]`},
			}},
		},
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: namespace},
	}
	allow := enforce(t, policy, binding)
	eventually(t, defaultTimeout, func() (bool, string) {
		pod := newPod(namespace, "", nil)
		err := admin(t).Create(t.Context(), pod, client.DryRunAll)
		return err == nil && pod.Labels["other"] != "", fmt.Sprintf("the API server does not apply the policy yet: %v", err)
	})
	pods := recordPods(t, namespace)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{Unschedulable: "not to run"})
	vm = waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonCreateFailed)
	if !strings.Contains(vm.Status.Message, v1alpha1.VirtualMachineLabel) {
		t.Errorf("unexpected message: %s", vm.Status.Message)
	}
	allow()
	vm = waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable)
	created := map[types.UID]bool{}
	for _, change := range pods.all(t) {
		created[change.object.UID] = true
	}
	// A few Pods are allowed. The operator first retries after one second, and the API server still applies a deleted
	// policy for a moment.
	if len(created) > 5 || getPod(t, vm).Labels[v1alpha1.VirtualMachineLabel] == "" {
		t.Errorf("%d Pods were created, want at most 5 and the last one with the label", len(created))
	}
}

// stop makes a VirtualMachine inactive. It checks that the phase becomes Stopped only after the Pod is deleted.
func stop(t *testing.T, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	machines, pods := recordVirtualMachines(t, vm.Namespace), recordPods(t, vm.Namespace)
	setAction(t, vm, v1alpha1.ActionInactive)
	stopped := machines.untilObject(t, vm.Name, "is stopped", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Spec.Action == v1alpha1.ActionInactive && vm.Status.Phase == v1alpha1.PhaseStopped
	})
	if err := admin(t).Get(t.Context(), podKey(vm), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("get the Pod of the stopped virtual machine: got error %v, want NotFound", err)
	}
	for _, change := range pods.all(t) {
		if !before(t, change.object, stopped) {
			t.Errorf("the Pod was %s after the virtual machine was stopped", change.kind)
		}
	}
}

func testVirtualMachineQuota(t *testing.T, namespace string) {
	quota := createCPUQuota(t, namespace, "1")
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	vm = waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonQuotaExceeded)
	if !strings.Contains(vm.Status.Message, "exceeded quota") {
		t.Errorf("unexpected message: %s", vm.Status.Message)
	}
	waitForEvent(t, vm, v1alpha1.EventCreateFailed)
	if err := admin(t).Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	waitForActive(t, vm)
}

// createCPUQuota limits the CPUs in a namespace. It returns when the API server enforces the limit.
func createCPUQuota(t *testing.T, namespace, cpus string) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceLimitsCPU: apiresource.MustParse(cpus)}},
	}
	if err := admin(t).Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	pod := newPod(namespace, "too-large", nil)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("1000")}
	waitForQuotaRejection(t, quota.Name, pod)
	return quota
}

func testVirtualMachineWebhookDown(t *testing.T, namespace string) {
	hook := admissionregistrationv1.ValidatingWebhook{
		Name:         "down.example.com",
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new(fmt.Sprintf("https://127.0.0.1:%d", freePort(t)))},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}},
	}
	allow := createWebhook(t, namespace, hook)
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Create(t.Context(), newPod(namespace, "", nil), client.DryRunAll)
		return apierrors.IsInternalError(err), fmt.Sprintf("the API server does not call the webhook yet: %v", err)
	})
	machines := recordVirtualMachines(t, namespace)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	vm = waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonCreateFailed)
	if !strings.Contains(vm.Status.Message, hook.Name) {
		t.Errorf("unexpected message: %s", vm.Status.Message)
	}
	waitForEvent(t, vm, v1alpha1.EventCreateFailed)
	allow()
	waitForActive(t, vm)
	failures := map[string]bool{}
	for _, change := range machines.all(t) {
		if change.object.Status.Reason == v1alpha1.ReasonCreateFailed {
			failures[change.object.ResourceVersion] = true
		}
	}
	if len(failures) != 1 {
		t.Errorf("the operator wrote the failure %d times, want once", len(failures))
	}
}

// createWebhook lets the API server call a webhook for requests in a namespace. It removes the webhook when remove is
// called or the test ends.
func createWebhook(t *testing.T, namespace string, hook admissionregistrationv1.ValidatingWebhook) (remove func()) {
	t.Helper()
	hook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	hook.SideEffects = new(admissionregistrationv1.SideEffectClassNone)
	hook.AdmissionReviewVersions = []string{"v1"}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{hook},
	}
	if err := admin(t).Create(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	remove = func() {
		if err := admin(t).Delete(context.Background(), configuration); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
	t.Cleanup(remove)
	return remove
}

func testVirtualMachineNameConflict(t *testing.T, namespace string) { testConflict(t, namespace, nil) }

func testVirtualMachineNameConflictLabelled(t *testing.T, namespace string) {
	testConflict(t, namespace, map[string]string{v1alpha1.VirtualMachineLabel: "vm"})
}

// testConflict creates an unrelated Pod with the name of the VirtualMachine's Pod. Then it creates the VirtualMachine.
func testConflict(t *testing.T, namespace string, labels map[string]string) {
	node(t)
	foreign := newPod(namespace, "vm-vm", labels)
	if err := admin(t).Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	pods := recordPods(t, namespace)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	waitForReason(t, vm, v1alpha1.PhaseFailed, v1alpha1.ReasonNameConflict)
	waitForEvent(t, vm, v1alpha1.EventNameConflict)
	setAction(t, vm, v1alpha1.ActionInactive)
	waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
	setAction(t, vm, v1alpha1.ActionActive)
	waitForReason(t, vm, v1alpha1.PhaseFailed, v1alpha1.ReasonNameConflict)
	for _, change := range pods.all(t) {
		if change.kind != watch.Modified || change.object.UID != foreign.UID || len(change.object.OwnerReferences) > 0 {
			t.Errorf("the unrelated Pod was %s: %+v", change.kind, change.object.ObjectMeta)
		}
	}
	eventually(t, defaultTimeout, func() (bool, string) {
		events := len(eventsOn(t, vm, v1alpha1.EventNameConflict))
		return events == 2, fmt.Sprintf("the two conflicts caused %d events, want 2", events)
	})
	if err := admin(t).Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	waitForActive(t, vm)
}

func testVirtualMachineInactive(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{Lingering: true}))
	first := vm.Status.Server.ID
	setAction(t, vm, v1alpha1.ActionInactive)
	waitForReason(t, vm, v1alpha1.PhaseActive, v1alpha1.ReasonStopping)
	node(t).Set(podKey(vm), standin.Fate{})
	vm = waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
	if vm.Status.Server != nil {
		t.Errorf("the stopped virtual machine has status.server %+v", vm.Status.Server)
	}
	checkCondition(t, vm, v1alpha1.ConditionScheduled, metav1.ConditionFalse, v1alpha1.ReasonNoServer)
	checkCondition(t, vm, v1alpha1.ConditionUsageAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoServer)
	if err := admin(t).Get(t.Context(), podKey(vm), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("get the Pod of the stopped virtual machine: got error %v, want NotFound", err)
	}
	waitForEvent(t, vm, v1alpha1.EventStopped)
	setAction(t, vm, v1alpha1.ActionActive)
	if vm = waitForActive(t, vm); vm.Status.Server.ID == first {
		t.Error("the virtual machine has the same Pod as before the stop")
	}
}

func testVirtualMachinePhases(t *testing.T, namespace string) {
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	pods := recordPods(t, namespace)
	activate := func(fate standin.Fate) {
		node(t).Set(podKey(vm), fate)
		setAction(t, vm, v1alpha1.ActionActive)
	}
	phases := []struct {
		phase  v1alpha1.Phase
		reason string
		enter  func()
	}{
		{v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable, func() {
			activate(standin.Fate{Unschedulable: "no node"})
			// A Pod keeps its node. Delete the Pod, so that the next Pod stays unscheduled.
			mustKubectl(t, "", "delete", "pod", podKey(vm).Name, "-n", namespace, "--ignore-not-found", "--wait=false")
		}},
		{v1alpha1.PhaseActive, v1alpha1.ReasonServerReady, func() { activate(standin.Fate{}) }},
		{v1alpha1.PhaseFailed, "ImagePullBackOff", func() { activate(standin.Fate{Waiting: "ImagePullBackOff"}) }},
		{v1alpha1.PhaseStopped, v1alpha1.ReasonStopped, func() { setAction(t, vm, v1alpha1.ActionInactive) }},
	}
	for _, from := range phases {
		for _, to := range phases {
			from.enter()
			waitForReason(t, vm, from.phase, from.reason)
			to.enter()
			waitForReason(t, vm, to.phase, to.reason)
		}
	}
	if most := mostAtOnce(pods.all(t)); most > 1 {
		t.Errorf("%d Pods existed at the same time, want at most 1", most)
	}
}

func testVirtualMachineToggled(t *testing.T, namespace string) {
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	pods := recordPods(t, namespace)
	for range 20 {
		setAction(t, vm, v1alpha1.ActionInactive)
		setAction(t, vm, v1alpha1.ActionActive)
	}
	waitForActive(t, vm)
	for range 3 {
		setAction(t, vm, v1alpha1.ActionInactive)
		waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
		setAction(t, vm, v1alpha1.ActionActive)
		waitForActive(t, vm)
	}
	if most := mostAtOnce(pods.all(t)); most > 1 {
		t.Errorf("%d Pods existed at the same time, want at most 1", most)
	}
}

func testVirtualMachinePaused(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	// The second VirtualMachine is created paused. The third is a barrier: when it is active, the operator has
	// processed the earlier changes.
	paused := newVirtualMachine(namespace, "paused")
	paused.Annotations = map[string]string{"useless.container.training/paused": "true"}
	if err := admin(t).Create(t.Context(), paused); err != nil {
		t.Fatal(err)
	}
	setPaused(t, newVirtualMachine(namespace, "vm"), true)
	setAction(t, vm, v1alpha1.ActionInactive)
	waitForActive(t, createVirtualMachine(t, namespace, "barrier", standin.Fate{}))
	if got := getVirtualMachine(t, namespace, "vm"); got.Status.Phase != v1alpha1.PhaseActive ||
		!getPod(t, vm).DeletionTimestamp.IsZero() {
		t.Errorf("the paused virtual machine was changed: %+v", got.Status)
	}
	if diff := cmp.Diff(paused, getVirtualMachine(t, namespace, "paused")); diff != "" {
		t.Errorf("the paused virtual machine was changed (-before +after):\n%s", diff)
	}
	setPaused(t, newVirtualMachine(namespace, "vm"), false)
	waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
	setPaused(t, newVirtualMachine(namespace, "paused"), false)
	waitForActive(t, paused)
}

func testVirtualMachineNamespaces(t *testing.T, namespace string) {
	other := newNamespace(t)
	one := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	two := waitForActive(t, createVirtualMachine(t, other, "vm", standin.Fate{}))
	setAction(t, two, v1alpha1.ActionInactive)
	waitForReason(t, two, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
	if pod := getPod(t, one); pod.UID != one.Status.Server.ID || !pod.DeletionTimestamp.IsZero() {
		t.Errorf("the Pod in the other namespace was changed: %+v", pod.ObjectMeta)
	}
}

// resize changes the CPU and memory of a VirtualMachine.
func resize(t *testing.T, vm *v1alpha1.VirtualMachine, cpu, memory string) {
	t.Helper()
	mergePatch(t, newVirtualMachine(vm.Namespace, vm.Name), `{"spec":{"resource":{"cpu":%q,"memory":%q}}}`, cpu, memory)
}

// checkResources checks the requests and limits of a VirtualMachine's Pod. The Pod's UID must be the server ID in
// vm.Status, and its container must not have restarted.
func checkResources(t *testing.T, vm *v1alpha1.VirtualMachine, cpu, memory string) {
	t.Helper()
	pod := getPod(t, vm)
	want := corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(cpu), corev1.ResourceMemory: apiresource.MustParse(memory)}
	got := pod.Spec.Containers[0].Resources
	if diff := cmp.Diff(want, got.Requests) + cmp.Diff(want, got.Limits); diff != "" || pod.UID != vm.Status.Server.ID || pod.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("Pod %s, want %s, with %d restarts; resources (-want +got):\n%s", pod.UID, vm.Status.Server.ID,
			pod.Status.ContainerStatuses[0].RestartCount, diff)
	}
}

func testVirtualMachineResized(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	resize(t, vm, "500m", "8Gi")
	eventually(t, defaultTimeout, func() (bool, string) {
		applied := getPod(t, vm).Status.ContainerStatuses[0].Resources
		return applied.Limits.Cpu().MilliValue() == 500, fmt.Sprintf("the applied limits are %v", applied.Limits)
	})
	checkResources(t, vm, "500m", "8Gi")
	waitForCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionFalse, v1alpha1.ReasonUpToDate)
	waitForEvent(t, vm, v1alpha1.EventResized)
	waitForActive(t, vm)
}

func testVirtualMachineNotResizable(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	resize(t, vm, "500m", "8Gi")
	vm = waitForCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionTrue, v1alpha1.ReasonResizeRefused)
	message := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionResizing).Message
	if !strings.Contains(message, "requires Kubernetes 1.33") {
		t.Errorf("unexpected message: %s", message)
	}
	checkResources(t, waitForActive(t, vm), "2", "4G")
	stop(t, vm)
	setAction(t, vm, v1alpha1.ActionActive)
	vm = waitForActive(t, vm)
	checkResources(t, vm, "500m", "8Gi")
	waitForCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionFalse, v1alpha1.ReasonUpToDate)
}

func testVirtualMachineResizedEarly(t *testing.T, namespace string) {
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{Unschedulable: "no node has 2 CPUs"})
	vm = waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable)
	resize(t, vm, "1", "1G")
	waitForEvent(t, vm, v1alpha1.EventResized)
	node(t).Set(podKey(vm), standin.Fate{})
	checkResources(t, waitForActive(t, vm), "1", "1G")
}

func testVirtualMachineNotResized(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	for _, reason := range []string{v1alpha1.ReasonInfeasible, v1alpha1.ReasonDeferred} {
		node(t).Set(podKey(vm), standin.Fate{NoResize: reason})
		resize(t, vm, "1000", "4G")
		waitForCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionTrue, reason)
	}
	waitForActive(t, vm) // the Pod still runs with the old size
	node(t).Set(podKey(vm), standin.Fate{})
	waitForCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionFalse, v1alpha1.ReasonUpToDate)
	checkResources(t, vm, "1000", "4G")
}

func testVirtualMachineResizeRefused(t *testing.T, namespace string) {
	quota := createCPUQuota(t, namespace, "3")
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	resize(t, vm, "4", "4G")
	vm = waitForCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionTrue, v1alpha1.ReasonResizeRefused)
	if message := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionResizing).Message; !strings.Contains(message, "exceeded quota") {
		t.Errorf("unexpected message: %s", message)
	}
	checkResources(t, waitForActive(t, vm), "2", "4G")
	if err := admin(t).Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	waitForCondition(t, vm, v1alpha1.ConditionResizing, metav1.ConditionFalse, v1alpha1.ReasonUpToDate)
	checkResources(t, vm, "4", "4G")
}

func testVirtualMachineDeletedInEveryPhase(t *testing.T, namespace string) {
	lingering := standin.Fate{Lingering: true}
	cases := map[string]struct {
		fate    standin.Fate
		reached func(t *testing.T, vm *v1alpha1.VirtualMachine)
	}{
		// Wait for the finalizer. If the operator writes the finalizer during the deletion, Kubernetes may ignore the
		// finalizer and delete the object.
		"at-once": {reached: func(t *testing.T, vm *v1alpha1.VirtualMachine) {
			t.Helper()
			eventually(t, defaultTimeout, func() (bool, string) {
				finalizers := getVirtualMachine(t, vm.Namespace, vm.Name).Finalizers
				return len(finalizers) > 0, "the virtual machine has no finalizer"
			})
		}},
		"unschedulable": {standin.Fate{Unschedulable: "no node"}, isIn(v1alpha1.PhaseCreating, v1alpha1.ReasonUnschedulable)},
		"active":        {lingering, isIn(v1alpha1.PhaseActive, v1alpha1.ReasonServerReady)},
		"image":         {standin.Fate{Waiting: "ImagePullBackOff"}, isIn(v1alpha1.PhaseFailed, "ImagePullBackOff")},
		"evicted":       {standin.Fate{Evicted: "low on memory"}, isIn(v1alpha1.PhaseFailed, "Evicted")},
		"stopping": {lingering, func(t *testing.T, vm *v1alpha1.VirtualMachine) {
			t.Helper()
			waitForActive(t, vm)
			setAction(t, vm, v1alpha1.ActionInactive)
			waitForReason(t, vm, v1alpha1.PhaseActive, v1alpha1.ReasonStopping)
		}},
		"replacing": {lingering, func(t *testing.T, vm *v1alpha1.VirtualMachine) {
			t.Helper()
			waitForActive(t, vm)
			mustKubectl(t, "", "delete", "pod", podKey(vm).Name, "-n", namespace, "--wait=false")
			waitForReason(t, vm, v1alpha1.PhaseCreating, v1alpha1.ReasonReplacing)
		}},
		"stopped": {standin.Fate{}, func(t *testing.T, vm *v1alpha1.VirtualMachine) {
			t.Helper()
			setAction(t, vm, v1alpha1.ActionInactive)
			waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machines, pods := recordVirtualMachines(t, namespace), recordPods(t, namespace)
			vm := createVirtualMachine(t, namespace, name, c.fate)
			c.reached(t, vm)
			mustKubectl(t, "", "delete", "vm", name, "-n", namespace, "--wait=false")
			if c.fate.Lingering {
				waitForReason(t, vm, v1alpha1.PhaseTerminating, v1alpha1.ReasonTerminating)
				node(t).Set(podKey(vm), standin.Fate{})
			}
			gone := machines.untilDeleted(t, name)
			for _, change := range pods.all(t) {
				if change.object.Name == podKey(vm).Name && !before(t, change.object, gone) {
					t.Errorf("Pod %s was %s after the virtual machine was deleted", change.object.Name, change.kind)
				}
			}
			if err := admin(t).Get(t.Context(), podKey(vm), &corev1.Pod{}); !apierrors.IsNotFound(err) {
				t.Errorf("get the Pod after the virtual machine is deleted: got error %v, want NotFound", err)
			}
		})
	}
}

func isIn(phase v1alpha1.Phase, reason string) func(*testing.T, *v1alpha1.VirtualMachine) {
	return func(t *testing.T, vm *v1alpha1.VirtualMachine) {
		t.Helper()
		waitForReason(t, vm, phase, reason)
	}
}

func testVirtualMachineForeground(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	machines, pods := recordVirtualMachines(t, namespace), recordPods(t, namespace)
	mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace, "--cascade=foreground")
	gone, pod := machines.untilDeleted(t, "vm"), pods.untilDeleted(t, podKey(vm).Name)
	if !before(t, pod, gone) {
		t.Error("the Pod was deleted after the virtual machine")
	}
	for _, change := range pods.all(t) {
		if change.kind == watch.Added {
			t.Errorf("the Pod was replaced by %s", change.object.UID)
		}
	}
}

func testVirtualMachineOrphan(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace, "--cascade=orphan")
	eventually(t, defaultTimeout, func() (bool, string) {
		pod := getPod(t, vm)
		return len(pod.OwnerReferences) == 0 && pod.DeletionTimestamp.IsZero(),
			fmt.Sprintf("the Pod is not orphaned: %+v", pod.ObjectMeta)
	})
}

func testVirtualMachinePausedDeleted(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	setPaused(t, newVirtualMachine(namespace, "vm"), true)
	pods := recordPods(t, namespace)
	mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace)
	pods.untilDeleted(t, podKey(vm).Name)
}

func testVirtualMachineConflictDeleted(t *testing.T, namespace string) {
	foreign := newPod(namespace, "vm-vm", nil)
	if err := admin(t).Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	waitForReason(t, vm, v1alpha1.PhaseFailed, v1alpha1.ReasonNameConflict)
	mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace)
	if pod := getPod(t, vm); pod.UID != foreign.UID || !pod.DeletionTimestamp.IsZero() {
		t.Errorf("the unrelated Pod was changed: %+v", pod.ObjectMeta)
	}
}

func testVirtualMachineRecreated(t *testing.T, namespace string) {
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	for range 5 {
		before := vm
		mustKubectl(t, "", "delete", "vm", "vm", "-n", namespace)
		vm = waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
		if vm.Status.Server.ID == before.Status.Server.ID || !metav1.IsControlledBy(getPod(t, vm), vm) {
			t.Errorf("status.server is %+v, want a new Pod that the virtual machine controls", vm.Status.Server)
		}
	}
}
