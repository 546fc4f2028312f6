// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/controller/virtualmachine"
)

// other is an object that a controller other than the Machine controller manages.
type other struct {
	controller string
	name       string
	state      string
	done       bool      // whether the controller has nothing to do before due
	due        time.Time // time of the next scheduled change; zero for none
}

// readOthers reads the objects of the other controllers, except StatefulSets, CronJobs and autoscalers. Only the web
// page shows these.
func readOthers(ctx context.Context, c client.Client) ([]other, error) {
	var vms cloudnativev1alpha1.VirtualMachineList
	var deployments appsv1.DeploymentList
	var replicaSets appsv1.ReplicaSetList
	var ingresses networkingv1.IngressList
	err := errors.Join(c.List(ctx, &vms), c.List(ctx, &deployments), c.List(ctx, &replicaSets), c.List(ctx, &ingresses))
	if err != nil {
		return nil, err
	}
	others := slices.Concat(
		describe(vms.Items, virtualMachine),
		describe(slices.DeleteFunc(deployments.Items, unscheduled), deployment),
		describe(slices.DeleteFunc(replicaSets.Items, ofOperator), replicaSet),
		describe(ingresses.Items, annotated),
	)
	return others, nil
}

func describe[T any](objects []T, one func(T) other) (others []other) {
	for _, object := range objects {
		others = append(others, one(object))
	}
	slices.SortFunc(others, func(a, b other) int { return strings.Compare(a.name, b.name) })
	return others
}

// ofOperator reports whether a ReplicaSet belongs to the operator itself. The manifests contain the operator's
// Deployment, and the simulated node reports its Pods as running. But in the demo, the operator runs as a process.
func ofOperator(rs appsv1.ReplicaSet) bool { return rs.Namespace == operatorNamespace }

func virtualMachine(vm cloudnativev1alpha1.VirtualMachine) other {
	size := fmt.Sprintf("cpu %s, memory %s", vm.Spec.Resource.CPU.String(), vm.Spec.Resource.Memory.String())
	return other{
		controller: virtualmachine.Name,
		name:       name(vm.Namespace, vm.Name),
		state:      fmt.Sprintf("%s, %s", cmp.Or(string(vm.Status.Phase), "new"), size),
		done:       vm.Status.Phase == cloudnativev1alpha1.PhaseActive || vm.Status.Phase == cloudnativev1alpha1.PhaseStopped,
	}
}

func unscheduled(d appsv1.Deployment) bool {
	return d.Annotations[v1beta1.StartScheduleAnnotation] == "" && d.Annotations[v1beta1.StopScheduleAnnotation] == ""
}

func deployment(d appsv1.Deployment) other {
	state := d.Annotations[v1beta1.ScheduleStateAnnotation]
	due, _ := time.Parse(time.RFC3339, d.Annotations[v1beta1.NextScheduleTimeAnnotation])
	return other{
		controller: schedule.Name,
		name:       name(d.Namespace, d.Name),
		state: fmt.Sprintf("%s, %d of %d replicas", cmp.Or(state, "new"),
			d.Status.Replicas, ptr.Deref(d.Spec.Replicas, 1)),
		done: state != "" && d.Status.Replicas == ptr.Deref(d.Spec.Replicas, 1),
		due:  due,
	}
}

func replicaSet(rs appsv1.ReplicaSet) other {
	count := rs.Labels[podcount.DefaultLabel]
	return other{
		controller: podcount.Name,
		name:       name(rs.Namespace, rs.Name),
		state:      podcount.DefaultLabel + "=" + count,
		done:       count == fmt.Sprint(rs.Status.Replicas),
	}
}

func annotated(i networkingv1.Ingress) other {
	pairs := make([]string, 0, len(i.Annotations))
	for _, key := range slices.Sorted(maps.Keys(i.Annotations)) {
		pairs = append(pairs, key+"="+i.Annotations[key])
	}
	return other{
		controller: ingress.Name,
		name:       name(i.Namespace, i.Name),
		state:      strings.Join(pairs, ", "),
		done:       i.Annotations[annotationKey] == annotationValue,
	}
}

func (o other) pendingReason() string {
	if o.done {
		return ""
	}
	return "the controller " + o.controller + " has not finished"
}
