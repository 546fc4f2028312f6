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

var randomServers = subject{
	controller: virtualmachine.Name, acts: serverActs,
	lasts: []time.Duration{time.Second, 12 * time.Second, time.Minute, 6 * time.Minute}, calm: calmServers,
}

// serverActs are what can happen to a VirtualMachine and its server.
func serverActs(r *rand.Rand, _ uint64, i int) []act {
	policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}
	policy := policies[r.IntN(len(policies))]
	creation, run := byUsers(createServer), runServer(1+r.IntN(2))
	if i == 0 {
		return creation
	}
	return append(disturbances(r, serverKinds), byUsers(
		createServer, createServer, createServer, run, run, run, run, resizeServer, takeServerAway, letServerGo, letServerGo,
		step{what: "resize back", do: patch(vm(), `{"spec":{"resource":{"cpu":1}}}`)},
		step{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		step{what: "start", do: patch(vm(), `{"spec":{"action":"active"}}`)},
		step{what: "pause", do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":"true"}}}`)},
		step{what: "go on", do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)},
		step{what: fmt.Sprintf("delete, %s", policy), do: remove(vm(), client.PropagationPolicy(policy))},
		step{what: "delete the server", do: remove(server)},
		step{what: "the server is evicted", do: patchStatus(server, `{"status":{"phase":"Failed","reason":"Evicted"}}`)},
		step{what: "take its label away", do: patch(server, `{"metadata":{"labels":null}}`)},
		step{what: "a quota", do: create(podQuota())},
		step{what: "no quota", do: remove(podQuota())},
	)...)
}

// byUsers are acts of users and of nodes.
func byUsers(steps ...step) (acts []act) {
	for _, s := range steps {
		acts = append(acts, act{what: s.what, do: byUser(s.do)})
	}
	return acts
}

// calmServers has a node do its part until the VirtualMachine is as it should be, and then deletes it.
func calmServers(ctx context.Context, p *play) error {
	var r record
	for range 4 { // one ends, one is waited for as long as another one that failed, one comes, and one is resized
		if err := errors.Join(playNode(ctx, p.world.Admin), r.pass(p.world, virtualMachineTries, mostReconciles, 0)); err != nil {
			return err
		}
	}
	if err := errors.Join(append(r.faults, servesAsAsked(ctx, p.world.Admin))...); err != nil {
		return err
	}
	if err := r.rest(p.world, time.Hour, 0); err != nil || len(r.faults) > 0 {
		return errors.Join(append(r.faults, err)...)
	}
	for _, do := range []func(context.Context, client.Client) error{remove(vm()), playNode} {
		if err := errors.Join(client.IgnoreNotFound(do(ctx, p.world.Admin)), p.world.Pass(quiet)); err != nil {
			return err
		}
	}
	return left(p.world, "VirtualMachine")
}

// virtualMachineTries is longer than any time between two tries to have a server.
const virtualMachineTries = 6 * time.Minute

// playNode lets a server go that is to go, and runs one that is to run.
func playNode(ctx context.Context, c client.Client) error {
	pod := server.DeepCopy()
	switch err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); {
	case err != nil:
		return client.IgnoreNotFound(err)
	case pod.DeletionTimestamp != nil:
		return letServerGo.do(ctx, c)
	case pod.Status.Phase == corev1.PodFailed:
		return nil
	}
	return runServer(int(pod.Spec.Containers[0].Resources.Limits.Cpu().Value())).do(ctx, c)
}

// servesAsAsked reports what the VirtualMachine has that it does not ask for.
func servesAsAsked(ctx context.Context, c client.Client) error {
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
	kept := func(pod corev1.Pod) bool { return metav1.GetControllerOf(&pod) == nil }
	if pods.Items = slices.DeleteFunc(pods.Items, kept); len(pods.Items) != wanted || vm.Status.Phase != phase {
		return fmt.Errorf("there are %d Pods of %+v", len(pods.Items), vm)
	}
	return nil
}

var scheduleKinds = []string{"Deployment"}

var randomSchedules = subject{
	controller: schedule.Name, acts: scheduleActs,
	lasts: []time.Duration{time.Second, 7 * time.Minute, 25 * time.Minute, 2 * time.Hour}, calm: calmSchedule,
}

// annotateSchedule sets annotations of the operator's on the Deployment.
func annotateSchedule(annotation, value string) step {
	return step{what: annotation + " " + value, do: patch(scheduled(), fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value))}
}

// scheduleActs are what can happen to a Deployment with a schedule.
func scheduleActs(r *rand.Rand, _ uint64, i int) []act {
	creation := byUsers(step{what: "create", do: create(scheduled())})
	if i == 0 {
		return creation
	}
	n, at := r.IntN(6), fmt.Sprintf(`"%d * * * *"`, r.IntN(60))
	scale := step{what: fmt.Sprintf("scale to %d by hand", n), do: patch(scheduled(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))}
	return append(append(disturbances(r, scheduleKinds), creation...), byUsers(
		scale, scale,
		annotateSchedule(v1beta1.StartScheduleAnnotation, at), annotateSchedule(v1beta1.StopScheduleAnnotation, at),
		annotateSchedule(v1beta1.StartScheduleAnnotation, `"25:00"`),
		annotateSchedule(v1beta1.SuspendAnnotation, `"true"`), annotateSchedule(v1beta1.SuspendAnnotation, `null`),
		step{what: "remove the schedule", do: removeSchedule},
		step{what: "delete", do: remove(scheduled())},
	)...)
}

// calmSchedule gives the Deployment a schedule that is right, sees to it for two hours, and then removes it.
func calmSchedule(ctx context.Context, p *play) error {
	w, r, d := p.world, record{}, scheduled()
	if err := w.Admin.Create(ctx, d); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	right := patch(d, fmt.Sprintf(`{"metadata":{"annotations":{%q:"10 * * * *",%q:"40 * * * *",%q:"3",%q:null}}}`,
		v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation, v1beta1.StartReplicasAnnotation, v1beta1.SuspendAnnotation))
	if err := right(ctx, w.Admin); err != nil {
		return err
	}
	for range 8 {
		if err := r.pass(w, 15*time.Minute, mostReconciles, longestWait); err != nil {
			return err
		}
	}
	if err := w.Admin.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
		return err
	}
	minute := time.Now().UTC().Minute()
	if runs := minute >= 10 && minute < 40; runs != (*d.Spec.Replicas >= 3) || !runs && *d.Spec.Replicas != 0 {
		r.faults = append(r.faults, fmt.Errorf("it has %d replicas at minute %d", *d.Spec.Replicas, minute))
	}
	if err := removeSchedule(ctx, w.Admin); err != nil {
		return err
	}
	err := r.rest(w, time.Hour, 0)
	return errors.Join(append(r.faults, err)...)
}
