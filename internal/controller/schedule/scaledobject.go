// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// +kubebuilder:rbac:groups=keda.sh,resources=scaledobjects,verbs=list;watch;patch

var kedaVersion = schema.GroupVersion{Group: "keda.sh", Version: "v1alpha1"}

// pausedReplicas is KEDA's annotation for a ScaledObject that keeps a fixed number of replicas.
// See https://keda.sh/docs/latest/concepts/scaling-deployments/#pausing-autoscaling.
const pausedReplicas = "autoscaling.keda.sh/paused-replicas"

// pausedAutoscaling is KEDA's annotation for a ScaledObject that keeps its current replicas. KEDA reads a value that is
// not a boolean as true.
const pausedAutoscaling = "autoscaling.keda.sh/paused"

// scaledObjects is the kind ScaledObject of KEDA. A stop sets the annotation pausedReplicas, and a start removes it.
// The kind has no resource requests. The cache has only its metadata.
var scaledObjects = &kind{
	name:       "scaledobjects",
	shortName:  "so",
	gvk:        kedaVersion.WithKind("ScaledObject"),
	object:     &metav1.PartialObjectMetadata{TypeMeta: kedaType("ScaledObject")},
	list:       &metav1.PartialObjectMetadataList{TypeMeta: kedaType("ScaledObjectList")},
	onOff:      true,
	isOptional: true,
	problems:   schedule.ProblemsOfScaledObject,
	field:      fieldpath.MakePathOrDie("metadata", "annotations", pausedReplicas),
	level: func(o client.Object) int32 {
		if _, paused := o.GetAnnotations()[pausedReplicas]; paused {
			return 0
		}
		return 1
	},
	setLevel: func(o client.Object, level int32) {
		if delete(o.GetAnnotations(), pausedReplicas); level == 0 {
			o.GetAnnotations()[pausedReplicas] = cmp.Or(o.GetAnnotations()[v1beta1.StopReplicasAnnotation], "0")
		}
	},
	// While a user has paused the ScaledObject with pausedAutoscaling, KEDA would ignore a start.
	isPaused: func(o client.Object) bool {
		value, set := o.GetAnnotations()[pausedAutoscaling]
		paused, err := strconv.ParseBool(value)
		return set && (err != nil || paused)
	},
	resume: "annotate {} " + pausedAutoscaling + "-",
	describe: func(_, after int32) string {
		if after == 0 {
			return "Set the annotation " + pausedReplicas
		}
		return "Removed the annotation " + pausedReplicas
	},
}

func kedaType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: kedaVersion.String(), Kind: kind}
}
