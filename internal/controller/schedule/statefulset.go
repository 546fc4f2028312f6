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

// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=list;watch;patch
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch

var statefulSets = &kind{
	name:          "statefulsets",
	shortName:     "sts",
	gvk:           appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	object:        &appsv1.StatefulSet{},
	list:          &appsv1.StatefulSetList{},
	takesDefaults: true,
	field:         fieldpath.MakePathOrDie("spec", "replicas"),
	level:         func(o client.Object) int32 { return ptr.Deref(o.(*appsv1.StatefulSet).Spec.Replicas, 1) },
	setLevel:      func(o client.Object, replicas int32) { o.(*appsv1.StatefulSet).Spec.Replicas = &replicas },
	describe:      scaledReplicas,
	isScalable:    true,
	requests: func(o client.Object) corev1.ResourceList {
		return requestsOf(&o.(*appsv1.StatefulSet).Spec.Template.Spec)
	},
	trim: func(o client.Object) client.Object {
		s := o.(*appsv1.StatefulSet)
		spec := appsv1.StatefulSetSpec{Replicas: s.Spec.Replicas}
		spec.Template.Spec = trimPod(&s.Spec.Template.Spec)
		return &appsv1.StatefulSet{ObjectMeta: trimMeta(s.ObjectMeta), Spec: spec}
	},
}
