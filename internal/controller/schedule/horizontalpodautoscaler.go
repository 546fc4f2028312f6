// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/internal/schedule"
)

// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch;patch

// horizontalPodAutoscalers is the kind HorizontalPodAutoscaler. Its level is maxReplicas. A stop lowers maxReplicas to
// stop-replicas. If minReplicas is greater than stop-replicas, the stop lowers minReplicas too. The kind has no
// resource requests.
var horizontalPodAutoscalers = &kind{
	name:     "horizontalpodautoscalers",
	object:   &autoscalingv2.HorizontalPodAutoscaler{},
	list:     &autoscalingv2.HorizontalPodAutoscalerList{},
	field:    fieldpath.MakePathOrDie("spec", "maxReplicas"),
	level:    func(o client.Object) int32 { return o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas },
	setLevel: func(o client.Object, most int32) { o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas = most },
	least:    func(o client.Object) *int32 { return o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MinReplicas },
	setLeast: func(o client.Object, least int32) {
		o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MinReplicas = &least
	},
	describe: func(before, after int32) string {
		if before == after {
			return "Restored minReplicas"
		}
		return fmt.Sprintf("Changed maxReplicas from %d to %d", before, after)
	},
	problems: schedule.ProblemsOfAutoscaler,
	trim: func(o client.Object) client.Object {
		hpa := o.(*autoscalingv2.HorizontalPodAutoscaler)
		return &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: trimMeta(hpa.ObjectMeta),
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: hpa.Spec.ScaleTargetRef,
				MinReplicas:    hpa.Spec.MinReplicas,
				MaxReplicas:    hpa.Spec.MaxReplicas,
			},
		}
	},
}
