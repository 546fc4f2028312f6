// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/controller/virtualmachine"
)

var virtualMachineProfile = profile{
	controller: virtualmachine.Name, steps: virtualMachineSteps,
	pauses: []time.Duration{time.Second, 12 * time.Second, time.Minute, 6 * time.Minute}, settle: settleVirtualMachine,
}

// virtualMachineSteps returns the possible steps for a VirtualMachine and its Pod.
func virtualMachineSteps(r *rand.Rand, _ uint64, i int) []randomStep {
	policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
		metav1.DeletePropagationOrphan}
	policy := policies[r.IntN(len(policies))]
	creation, run := byUsers(createVM), runPod(1+r.IntN(2))
	if i == 0 {
		return creation
	}
	return append(disturbances(r, vmKinds), byUsers(
		createVM, createVM, createVM, run, run, run, run, resizeVM, orphanPod, endPod, endPod,
		step{what: "resize back", do: patch(vm(), `{"spec":{"resource":{"cpu":1}}}`)},
		step{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		step{what: "start", do: patch(vm(), `{"spec":{"action":"active"}}`)},
		step{what: "pause",
			do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":"true"}}}`)},
		step{what: "resume",
			do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)},
		step{what: fmt.Sprintf("delete, %s", policy), do: remove(vm(), client.PropagationPolicy(policy))},
		step{what: "delete the Pod", do: remove(vmPod)},
		step{what: "the Pod is evicted", do: patchStatus(vmPod, `{"status":{"phase":"Failed","reason":"Evicted"}}`)},
		step{what: "remove the Pod's label", do: patch(vmPod, `{"metadata":{"labels":null}}`)},
		step{what: "create a quota", do: create(podQuota())},
		step{what: "delete the quota", do: remove(podQuota())},
	)...)
}

// byUsers converts steps of users and nodes to random steps.
func byUsers(steps ...step) (random []randomStep) {
	for _, s := range steps {
		random = append(random, randomStep{what: s.what, do: byUser(s.do)})
	}
	return random
}

// settleVirtualMachine acts as the node until the VirtualMachine matches its spec. Then it deletes the VirtualMachine.
func settleVirtualMachine(ctx context.Context, run *randomRun) error {
	var r result
	for range 4 { // delete a Pod, wait for the retry interval, create a Pod, resize it
		if err := errors.Join(actAsNode(ctx, run.world.Admin),
			r.pass(run.world, maxRetryInterval, maxReconciles, 0)); err != nil {
			return err
		}
	}
	if err := errors.Join(append(r.violations, matchesSpec(ctx, run.world.Admin))...); err != nil {
		return err
	}
	if err := r.expectNoWrites(run.world, time.Hour, 0); err != nil || len(r.violations) > 0 {
		return errors.Join(append(r.violations, err)...)
	}
	for _, do := range []func(context.Context, client.Client) error{remove(vm()), actAsNode} {
		if err := errors.Join(client.IgnoreNotFound(do(ctx, run.world.Admin)), run.world.Pass(settleTime)); err != nil {
			return err
		}
	}
	return left(run.world, "VirtualMachine")
}

// maxRetryInterval is longer than the time between two attempts to create a Pod.
const maxRetryInterval = 6 * time.Minute

// actAsNode removes a Pod that is being deleted. It runs any other Pod that has not failed.
func actAsNode(ctx context.Context, c client.Client) error {
	pod := vmPod.DeepCopy()
	switch err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); {
	case err != nil:
		return client.IgnoreNotFound(err)
	case pod.DeletionTimestamp != nil:
		return endPod.do(ctx, c)
	case pod.Status.Phase == corev1.PodFailed:
		return nil
	}
	return runPod(int(pod.Spec.Containers[0].Resources.Limits.Cpu().Value())).do(ctx, c)
}

// matchesSpec returns an error if the VirtualMachine's Pods or phase do not match its spec.
func matchesSpec(ctx context.Context, c client.Client) error {
	vm, pods := vm(), &corev1.PodList{}
	err := c.Get(ctx, client.ObjectKeyFromObject(vm), vm)
	if err := errors.Join(client.IgnoreNotFound(err), c.List(ctx, pods)); err != nil {
		return err
	}
	wanted, phase := 1, cloudnativev1alpha1.PhaseActive
	switch {
	case err != nil:
		wanted, phase = 0, vm.Status.Phase
	case vm.Spec.Action == cloudnativev1alpha1.ActionInactive:
		wanted, phase = 0, cloudnativev1alpha1.PhaseStopped
	}
	orphaned := func(pod corev1.Pod) bool { return metav1.GetControllerOf(&pod) == nil }
	if pods.Items = slices.DeleteFunc(pods.Items, orphaned); len(pods.Items) != wanted || vm.Status.Phase != phase {
		return fmt.Errorf("%d Pods, want %d: %+v", len(pods.Items), wanted, vm)
	}
	return nil
}

var scheduleKinds = []string{"Deployment"}

var scheduleProfile = profile{
	controller: schedule.Name, steps: scheduleSteps,
	pauses: []time.Duration{time.Second, 7 * time.Minute, 25 * time.Minute, 2 * time.Hour}, settle: settleSchedule,
}

// setAnnotation sets an annotation of the Deployment. The value is JSON.
func setAnnotation(annotation, value string) step {
	return step{what: annotation + " " + value,
		do: patch(scheduled(), fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value))}
}

// scheduleSteps returns the possible steps for a Deployment with a schedule.
func scheduleSteps(r *rand.Rand, _ uint64, i int) []randomStep {
	creation := byUsers(step{what: "create", do: create(scheduled())})
	if i == 0 {
		return creation
	}
	n, at := r.IntN(6), fmt.Sprintf(`"%d * * * *"`, r.IntN(60))
	scale := step{what: fmt.Sprintf("scale to %d by hand", n),
		do: patch(scheduled(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))}
	return append(append(disturbances(r, scheduleKinds), creation...), byUsers(
		scale, scale,
		setAnnotation(v1beta1.StartScheduleAnnotation, at), setAnnotation(v1beta1.StopScheduleAnnotation, at),
		setAnnotation(v1beta1.StartScheduleAnnotation, `"25:00"`),
		setAnnotation(v1beta1.SuspendAnnotation, `"true"`), setAnnotation(v1beta1.SuspendAnnotation, `null`),
		step{what: "remove the schedule", do: removeSchedule},
		step{what: "delete", do: remove(scheduled())},
	)...)
}

// settleSchedule gives the Deployment a valid schedule, checks its replicas after two hours, and removes the schedule.
func settleSchedule(ctx context.Context, run *randomRun) error {
	w, r, d := run.world, result{}, scheduled()
	if err := w.Admin.Create(ctx, d); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	setSchedule := patch(d, fmt.Sprintf(`{"metadata":{"annotations":{%q:"10 * * * *",%q:"40 * * * *",%q:"3",%q:null}}}`,
		v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation, v1beta1.StartReplicasAnnotation,
		v1beta1.SuspendAnnotation))
	if err := setSchedule(ctx, w.Admin); err != nil {
		return err
	}
	for range 8 {
		if err := r.pass(w, 15*time.Minute, maxReconciles, maxScheduleWait); err != nil {
			return err
		}
	}
	if err := w.Admin.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
		return err
	}
	minute := time.Now().UTC().Minute()
	if runs := minute >= 10 && minute < 40; runs != (*d.Spec.Replicas >= 3) || !runs && *d.Spec.Replicas != 0 {
		r.violations = append(r.violations,
			fmt.Errorf("the Deployment has %d replicas at minute %d", *d.Spec.Replicas, minute))
	}
	if err := removeSchedule(ctx, w.Admin); err != nil {
		return err
	}
	err := r.expectNoWrites(w, time.Hour, 0)
	return errors.Join(append(r.violations, err)...)
}
