// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch;patch
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch

var deployments = &kind{
	name:          "deployments",
	shortName:     "deploy",
	gvk:           appsv1.SchemeGroupVersion.WithKind("Deployment"),
	object:        &appsv1.Deployment{},
	list:          &appsv1.DeploymentList{},
	takesDefaults: true,
	field:         fieldpath.MakePathOrDie("spec", "replicas"),
	level:         func(o client.Object) int32 { return ptr.Deref(o.(*appsv1.Deployment).Spec.Replicas, 1) },
	setLevel:      func(o client.Object, replicas int32) { o.(*appsv1.Deployment).Spec.Replicas = &replicas },
	describe:      scaledReplicas,
	isScalable:    true,
	requests: func(o client.Object) corev1.ResourceList {
		return requestsOf(&o.(*appsv1.Deployment).Spec.Template.Spec)
	},
	isPaused: func(o client.Object) bool { return o.(*appsv1.Deployment).Spec.Paused },
	resume:   "rollout resume {}",
	trim: func(o client.Object) client.Object {
		d := o.(*appsv1.Deployment)
		spec := appsv1.DeploymentSpec{Replicas: d.Spec.Replicas, Paused: d.Spec.Paused}
		spec.Template.Spec = trimPod(&d.Spec.Template.Spec)
		return &appsv1.Deployment{ObjectMeta: trimMeta(d.ObjectMeta), Spec: spec}
	},
}
