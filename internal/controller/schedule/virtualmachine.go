// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/schedule"
)

// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines,verbs=list;watch;patch

// virtualMachines is the kind VirtualMachine. A stop sets its action to inactive. The cache has all fields, because the
// controller of VirtualMachines reads them.
var virtualMachines = &kind{
	name:          "virtualmachines",
	shortName:     "vm",
	gvk:           v1alpha1.GroupVersion.WithKind("VirtualMachine"),
	object:        &v1alpha1.VirtualMachine{},
	list:          &v1alpha1.VirtualMachineList{},
	onOff:         true,
	problems:      schedule.ProblemsOfOnOff,
	takesDefaults: true,
	field:         fieldpath.MakePathOrDie("spec", "action"),
	level: func(o client.Object) int32 {
		if o.(*v1alpha1.VirtualMachine).Spec.Action == v1alpha1.ActionInactive {
			return 0
		}
		return 1
	},
	setLevel: func(o client.Object, level int32) { o.(*v1alpha1.VirtualMachine).Spec.Action = action(level) },
	describe: func(_, after int32) string { return "Set the action to " + string(action(after)) },
	requests: func(o client.Object) corev1.ResourceList {
		resource := o.(*v1alpha1.VirtualMachine).Spec.Resource
		return corev1.ResourceList{corev1.ResourceCPU: resource.CPU, corev1.ResourceMemory: resource.Memory}
	},
}

func action(level int32) v1alpha1.Action {
	if level == 0 {
		return v1alpha1.ActionInactive
	}
	return v1alpha1.ActionActive
}
