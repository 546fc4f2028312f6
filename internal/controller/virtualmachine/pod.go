// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
)

const (
	// podSuffix turns the name of a VirtualMachine into that of its Pod, and its absence tells that a Pod is none's.
	podSuffix = "-vm"

	// containerName is the name of the container that is the server. Admission may add others to its Pod.
	containerName = "server"
)

// podKey is where the Pod of a VirtualMachine is.
func podKey(vm *v1alpha1.VirtualMachine) client.ObjectKey {
	return client.ObjectKey{Namespace: vm.Namespace, Name: vm.Name + podSuffix}
}

// ownerOfName is the VirtualMachine that a Pod's name is for.
func ownerOfName(pod client.Object) (client.ObjectKey, bool) {
	name, ok := strings.CutSuffix(pod.GetName(), podSuffix)
	return client.ObjectKey{Namespace: pod.GetNamespace(), Name: name}, ok
}

// newPod is the server of a VirtualMachine. It satisfies the restricted Pod Security Standard. Nothing of the
// VirtualMachine's metadata goes into it: a label could give it to a Service or a NetworkPolicy of somebody else.
func newPod(vm *v1alpha1.VirtualMachine, image string) *corev1.Pod {
	wanted := resourcesOf(vm)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       vm.Namespace,
			Name:            podKey(vm).Name,
			Labels:          map[string]string{v1alpha1.VirtualMachineLabel: vm.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1alpha1.GroupVersion.WithKind("VirtualMachine"))},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyAlways,
			AutomountServiceAccountToken: new(false),
			EnableServiceLinks:           new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:      containerName,
				Image:     image,
				Resources: corev1.ResourceRequirements{Requests: wanted, Limits: wanted.DeepCopy()},
				ResizePolicy: []corev1.ContainerResizePolicy{
					{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
					{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.NotRequired},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// isLabelled reports whether a Pod has the label that brings it into the cache.
func isLabelled(pod *corev1.Pod) bool {
	_, labelled := pod.Labels[v1alpha1.VirtualMachineLabel]
	return labelled
}

// resourcesOf are the resources that a VirtualMachine asks for. They are rounded up to what Pods can have, as the API
// server would do it: a Pod that had other ones than asked for would be resized for ever.
func resourcesOf(vm *v1alpha1.VirtualMachine) corev1.ResourceList {
	wanted := corev1.ResourceList{
		corev1.ResourceCPU:    roundedUp(vm.Spec.Resource.CPU, resource.Milli),
		corev1.ResourceMemory: roundedUp(vm.Spec.Resource.Memory, 0),
	}
	if disk := vm.Spec.Resource.RootDisk; disk != nil {
		wanted[corev1.ResourceEphemeralStorage] = roundedUp(*disk, 0)
	}
	return wanted
}

func roundedUp(quantity resource.Quantity, scale resource.Scale) resource.Quantity {
	quantity = quantity.DeepCopy()
	quantity.RoundUp(scale)
	return quantity
}

// resized are the resources that can change while a server runs.
var resized = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// hasResources reports whether a Pod asks for the CPU and memory that the VirtualMachine does. One without our container
// has none that could be changed.
func hasResources(pod *corev1.Pod, vm *v1alpha1.VirtualMachine) bool {
	server := containerOf(pod)
	return server == nil ||
		same(server.Resources.Requests, resourcesOf(vm)) && same(server.Resources.Limits, resourcesOf(vm))
}

// same reports whether two lists agree in what can be resized.
func same(a, b corev1.ResourceList) bool {
	for _, name := range resized {
		if quantity := a[name]; quantity.Cmp(b[name]) != 0 {
			return false
		}
	}
	return true
}

// setResources gives a Pod the CPU and memory that the VirtualMachine asks for.
func setResources(pod *corev1.Pod, vm *v1alpha1.VirtualMachine) {
	wanted, has := resourcesOf(vm), &containerOf(pod).Resources
	for _, list := range []*corev1.ResourceList{&has.Requests, &has.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{} // admission may have taken it away
		}
		for _, name := range resized {
			(*list)[name] = wanted[name]
		}
	}
}

// containerOf is the container of a Pod that is the server, or nil.
func containerOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == containerName {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// containerStatus is what the kubelet says of that container; empty where it has not said anything.
func containerStatus(pod *corev1.Pod) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == containerName {
			return status
		}
	}
	return corev1.ContainerStatus{}
}

// hasEnded reports whether a Pod is over: no container of it will ever be started again.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// readySince tells since when a Pod runs and is ready, if it does and is.
func readySince(pod *corev1.Pod) (since time.Time, ready bool) {
	condition := podCondition(pod, corev1.PodReady)
	if hasEnded(pod) || containerStatus(pod).State.Running == nil || condition == nil || condition.Status != corev1.ConditionTrue {
		return time.Time{}, false
	}
	return condition.LastTransitionTime.Time, true
}

func podCondition(pod *corev1.Pod, conditionType corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == conditionType {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
