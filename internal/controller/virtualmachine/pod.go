// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/cloudnative/v1alpha1"
)

const (
	// podSuffix is the suffix of a Pod's name. The rest of the name is the name of the VirtualMachine.
	podSuffix = "-vm"

	// containerName is the name of the Pod's main container. Admission webhooks may add others.
	containerName = "server"
)

// podKey returns the namespace and name of a VirtualMachine's Pod.
func podKey(vm *v1alpha1.VirtualMachine) client.ObjectKey {
	return client.ObjectKey{Namespace: vm.Namespace, Name: vm.Name + podSuffix}
}

// requestOf returns the request for the VirtualMachine of a Pod. It finds the VirtualMachine by the Pod's name.
func requestOf(_ context.Context, pod *corev1.Pod) []reconcile.Request {
	name, ok := strings.CutSuffix(pod.Name, podSuffix)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: pod.Namespace, Name: name}}}
}

// newPod returns a new Pod for a VirtualMachine. It satisfies the restricted Pod Security Standard. It does not copy
// labels of the VirtualMachine: they could match a Service or a NetworkPolicy of another user.
func newPod(vm *v1alpha1.VirtualMachine, image string) *corev1.Pod {
	wanted, kind := resourcesOf(vm), v1alpha1.GroupVersion.WithKind("VirtualMachine")
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       vm.Namespace,
			Name:            podKey(vm).Name,
			Labels:          map[string]string{v1alpha1.VirtualMachineLabel: vm.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kind)},
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

// isLabelled reports whether a Pod has the label by which the cache selects Pods.
func isLabelled(pod *corev1.Pod) bool {
	return metav1.HasLabel(pod.ObjectMeta, v1alpha1.VirtualMachineLabel)
}

// resourcesOf returns the resources of the spec, rounded up like the API server does for Pods. Without rounding, the
// resources of the Pod would always differ, and the controller would resize it for ever.
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

// resized has the resources that can change while a Pod runs.
var resized = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// hasResources reports whether a Pod has the CPU and memory of the spec. It is true for a Pod without the main
// container, because there is nothing to resize.
func hasResources(pod *corev1.Pod, vm *v1alpha1.VirtualMachine) bool {
	main := containerOf(pod)
	return main == nil ||
		same(main.Resources.Requests, resourcesOf(vm)) && same(main.Resources.Limits, resourcesOf(vm))
}

// same reports whether two lists have equal amounts of the resized resources.
func same(a, b corev1.ResourceList) bool {
	for _, name := range resized {
		if quantity := a[name]; quantity.Cmp(b[name]) != 0 {
			return false
		}
	}
	return true
}

// setResources sets the CPU and memory of a Pod to the values of the spec.
func setResources(pod *corev1.Pod, vm *v1alpha1.VirtualMachine) {
	wanted, has := resourcesOf(vm), &containerOf(pod).Resources
	for _, list := range []*corev1.ResourceList{&has.Requests, &has.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{} // an admission webhook has removed the list
		}
		for _, name := range resized {
			(*list)[name] = wanted[name]
		}
	}
}

// containerOf returns the main container of a Pod, or nil.
func containerOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == containerName {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// containerStatus returns the status of the main container. It is empty before the kubelet reports one.
func containerStatus(pod *corev1.Pod) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == containerName {
			return status
		}
	}
	return corev1.ContainerStatus{}
}

// hasEnded reports whether a Pod has failed or succeeded. Its containers are never started again.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// readySince reports whether a Pod is running and ready. If it is, since is the time at which it became ready.
func readySince(pod *corev1.Pod) (since time.Time, ready bool) {
	condition := podCondition(pod, corev1.PodReady)
	if hasEnded(pod) || containerStatus(pod).State.Running == nil ||
		condition == nil || condition.Status != corev1.ConditionTrue {
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
