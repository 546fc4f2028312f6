// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/test/sim"
)

// shortVirtualMachine is a scenario with few writes. TestCrashes injects two faults into each of its runs, and
// TestTimeTravel tests each pair of its revisions.
var shortVirtualMachine = scenario{
	name: "virtual machine, short", controller: virtualmachine.Name, kinds: vmKinds, steps: []step{
		createVM,
		runPod(1),
		resizeVM,
		deleteVM,
		endPod,
	},
}

var vmKinds = []string{"VirtualMachine", "Pod"}

var virtualMachineScenarios = []scenario{{
	name: "virtual machine", controller: virtualmachine.Name, kinds: vmKinds, steps: []step{
		createVM,
		runPod(1),
		resizeVM,
		{what: "the node has no capacity for the resize",
			do: patchStatus(vmPod,
				`{"status":{"conditions":[{"type":"PodResizePending","status":"True","reason":"Deferred"}]}}`)},
		runPod(2),
		{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		endPod,
		{what: "start", do: patch(vm(), `{"spec":{"action":"active"}}`)},
		runPod(2),
		deleteVM,
		endPod,
	},
}, {
	name: "a Pod is lost", controller: virtualmachine.Name, kinds: vmKinds, steps: []step{
		createVM,
		runPod(1),
		{what: "delete the Pod", do: remove(vmPod)},
		endPod,
		runPod(1),
		{what: "the Pod fails", do: patchStatus(vmPod, `{"status":{"phase":"Failed","reason":"Evicted"}}`)},
		runPodForLong,
		{what: "remove the Pod's label", do: patch(vmPod, `{"metadata":{"labels":null}}`)},
		endPod,
		runPodForLong,
		deleteVM,
		endPod,
	},
}, {
	name: "a Pod cannot be created", controller: virtualmachine.Name, kinds: vmKinds, refused: true, steps: []step{
		{what: "create a Pod with the name of the VirtualMachine's Pod", do: create(vmPod)},
		createVM,
		{what: "delete that Pod", do: remove(vmPod)},
		runPod(1),
		{what: "create a quota", do: create(podQuota())},
		{what: "delete the Pod", do: remove(vmPod)},
		endPod,
		{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		{what: "delete the quota", do: remove(podQuota())},
		{what: "start", do: patch(vm(), `{"spec":{"action":"active"}}`)},
		deleteVM,
	},
}, {
	name: "a Pod is orphaned by the deletion", controller: virtualmachine.Name, kinds: vmKinds, steps: []step{
		createVM,
		runPod(1),
		{what: "pause", do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":"true"}}}`)},
		{what: "resize while paused", do: resizeVM.do},
		{what: "resume", do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)},
		{what: "delete and orphan the Pod", do: remove(vm(), client.PropagationPolicy(metav1.DeletePropagationOrphan))},
		endPod,
	},
}, {
	name: "a Pod is orphaned, then the VirtualMachine is resized", controller: virtualmachine.Name, kinds: vmKinds,
	refused: true, steps: []step{
		createVM,
		runPod(1),
		orphanPod,
		resizeVM,
		endPod,
		deleteVM,
	},
}, {
	name: "a Pod is orphaned, then the VirtualMachine is stopped", controller: virtualmachine.Name, kinds: vmKinds,
	refused: true, steps: []step{
		createVM,
		runPod(1),
		orphanPod,
		{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		deleteVM,
	},
}}

// vmPod is the Pod of the only VirtualMachine.
var vmPod = pod("vm-vm")

func vm() *cloudnativev1alpha1.VirtualMachine {
	vm := &cloudnativev1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vm"}}
	vm.Spec.Resource.CPU, vm.Spec.Resource.Memory = resource.MustParse("1"), resource.MustParse("1Gi")
	return vm
}

// Steps that several scenarios share.
var (
	createVM = step{what: "create", do: create(vm())}
	resizeVM = step{what: "resize", do: patch(vm(), `{"spec":{"resource":{"cpu":2}}}`)}
	// A Pod that runs for ten minutes resets the count of failures.
	runPodForLong = step{"the Pod runs for a long time", runPod(1).do, 10 * time.Minute}

	orphanPod = step{what: "remove the Pod's owner reference",
		do: patch(vmPod, `{"metadata":{"ownerReferences":null}}`)}

	endPod   = step{what: "the node ends the Pod", do: remove(vmPod, client.GracePeriodSeconds(0))}
	deleteVM = step{what: "delete", do: remove(vm())}
)

// runPod acts as a node that runs the Pod with this number of CPUs.
func runPod(cpu int) step {
	return step{what: fmt.Sprintf("the Pod runs with %d CPUs", cpu),
		do: func(ctx context.Context, c client.Client) error {
			now, pod := metav1.Now().UTC().Format(time.RFC3339), vmPod.DeepCopy()
			if err := c.Get(ctx, client.ObjectKeyFromObject(vmPod), pod); err != nil {
				return err
			}
			// The operator has not replaced the failed Pod yet. With NotFound, runSteps repeats this step later.
			if pod.Status.Phase == corev1.PodFailed {
				return apierrors.NewNotFound(corev1.Resource("pods"), vmPod.Name)
			}
			err := patch(vmPod, `{"spec":{"nodeName":"node"}}`)(ctx, c) // act as the scheduler
			// Wait until the operator has received the change of nodeName. Otherwise, the order of events would differ
			// between runs.
			synctest.Wait()
			return errors.Join(err, patchStatus(vmPod, fmt.Sprintf(`{"status":{"phase":"Running",
				"conditions":[{"type":"Ready","status":"True","lastTransitionTime":%[1]q}],
				"containerStatuses":[{"name":"server","state":{"running":{"startedAt":%[1]q}},
					"resources":{"limits":{"cpu":"%[2]d","memory":"1Gi"}}}]}}`, now, cpu))(ctx, c))
		}}
}

func podQuota() *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "quota"}}
	q.Spec.Hard = corev1.ResourceList{"count/pods": *resource.NewQuantity(0, resource.DecimalSI)}
	return q
}

// TestUnlabelledPod removes the label from each new Pod, as an admission webhook can. The operator's cache of Pods
// never shows such a Pod, so the operator must not wait for it. The operator deletes the Pod and tries again later.
// Then a user recreates the VirtualMachine, and new Pods keep their label. The VirtualMachine must get a Pod, and a
// resize of this Pod must work.
func TestUnlabelledPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		created := 0
		w.Mutate = func(object *unstructured.Unstructured) {
			if object.GetKind() == "Pod" {
				created++
				object.SetLabels(nil)
			}
		}
		_, err := w.Start(operators[0], virtualmachine.Name)
		must(t, err)
		must(t, errors.Join(createVM.do(t.Context(), w.Admin), w.Pass(20*time.Second)))
		if created < 4 {
			t.Errorf("the operator has created %d Pods in 20 seconds, want at least 4", created)
		}
		must(t, errors.Join(deleteVM.do(t.Context(), w.Admin), w.Pass(time.Second), left(w, "VirtualMachine")))

		// Create a new VirtualMachine of the same name. Its Pod has the same name too.
		must(t, errors.Join(createVM.do(t.Context(), w.Admin), w.Pass(time.Second)))
		w.Locked(func() { w.Mutate = nil })
		must(t, w.Pass(settleTime))
		must(t, errors.Join(resizeVM.do(t.Context(), w.Admin), w.Pass(time.Second)))
		events := map[string]int{}
		for _, object := range w.Objects() {
			if object.GetKind() == "Event" {
				reason, _, err := unstructured.NestedString(object.Object, "reason")
				must(t, err)
				events[reason]++
			}
		}
		want := map[string]int{"CreateFailed": 2, "Created": 1, "Resized": 1}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}
