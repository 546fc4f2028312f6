// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=list;watch;patch

// horizontalPodAutoscalers is the kind HorizontalPodAutoscaler. Its level is maxReplicas. A stop lowers maxReplicas to
// stop-replicas. If minReplicas is greater than stop-replicas, the stop lowers minReplicas too. The kind has no
// resource requests.
var horizontalPodAutoscalers = &kind{
	name:      "horizontalpodautoscalers",
	shortName: "hpa",
	gvk:       autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
	object:    &autoscalingv2.HorizontalPodAutoscaler{},
	list:      &autoscalingv2.HorizontalPodAutoscalerList{},
	field:     fieldpath.MakePathOrDie("spec", "maxReplicas"),
	level:     func(o client.Object) int32 { return o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas },
	setLevel:  func(o client.Object, most int32) { o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas = most },
	least:     func(o client.Object) *int32 { return o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MinReplicas },
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

// autoscalersByTarget is the index of autoscalers by the workload that they scale.
const autoscalersByTarget = "useless/target"

// conflict returns a warning about an autoscaler that would undo a stop, or an empty string. Kubernetes disables a
// HorizontalPodAutoscaler while its workload has 0 replicas; for the exceptions, see scalesToZero. An autoscaler that
// KEDA controls does not stay disabled, because KEDA would enable it again.
func conflict(s *schedule.Schedule, autoscalers []autoscalingv2.HorizontalPodAutoscaler) string {
	if s.Stop == nil && s.StopAfter == 0 {
		return ""
	}
	for i := range autoscalers {
		hpa := &autoscalers[i]
		if owner := kedaOwner(hpa); owner != nil {
			return fmt.Sprintf("%s %s would undo a stop, so the workload is not stopped: "+
				"move the annotations to the %[1]s", owner.Kind, owner.Name)
		}
		if scalesToZero(hpa) {
			return fmt.Sprintf("HorizontalPodAutoscaler %s has minReplicas 0 and may undo a stop, "+
				"so the workload is not stopped: set its minReplicas to at least 1", hpa.Name)
		}
		if s.StopReplicas > 0 {
			return fmt.Sprintf(`%s "%d": HorizontalPodAutoscaler %s would undo a stop, so the workload is not `+
				`stopped; use "0", which disables the autoscaler until the start, `+
				`or move the annotations to the HorizontalPodAutoscaler`,
				v1beta1.StopReplicasAnnotation, s.StopReplicas, hpa.Name)
		}
	}
	return ""
}

// kedaOwner returns the object of KEDA that controls an autoscaler, or nil.
func kedaOwner(o client.Object) *metav1.OwnerReference {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && strings.HasPrefix(owner.APIVersion, "keda.sh/") {
		return owner
	}
	return nil
}

// scalesToZero reports whether an autoscaler may scale to zero. Such an autoscaler stays active at 0 replicas if it has
// scaled to zero itself. Before Kubernetes 1.37, it always stays active.
func scalesToZero(o client.Object) bool {
	least := o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MinReplicas
	return least != nil && *least == 0
}

// indexAutoscalers indexes the autoscalers by their target, if one of the enabled kinds is scalable. An index starts a
// watch of all autoscalers. For example, an operator that has only the permissions for cronjobs must not start it.
func indexAutoscalers(ctx context.Context, indexer client.FieldIndexer, enabled []*kind) error {
	if !slices.ContainsFunc(enabled, func(k *kind) bool { return k.isScalable }) {
		return nil
	}
	return indexer.IndexField(ctx, &autoscalingv2.HorizontalPodAutoscaler{}, autoscalersByTarget,
		func(o client.Object) []string { return []string{target(o)} })
}

// autoscalersOf returns the autoscalers of a workload. They belong to the cache and must not be changed.
func (c *Controller) autoscalersOf(
	ctx context.Context, o client.Object,
) ([]autoscalingv2.HorizontalPodAutoscaler, error) {
	if !c.kind.isScalable {
		return nil, nil
	}
	list := &autoscalingv2.HorizontalPodAutoscalerList{}
	err := c.client.List(ctx, list, client.InNamespace(o.GetNamespace()),
		client.MatchingFields{autoscalersByTarget: c.kind.gvk.Kind + "/" + o.GetName()}, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// target returns the kind and the name of the workload that an autoscaler scales, such as Deployment/web. It returns an
// empty string if the workload is not in the API group apps.
func target(o client.Object) string {
	ref := o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.ScaleTargetRef
	group, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || group.Group != appsv1.GroupName {
		return ""
	}
	return ref.Kind + "/" + ref.Name
}

// targetOf returns the request for the workload of this kind that an autoscaler scales.
func (c *Controller) targetOf(_ context.Context, o client.Object) []reconcile.Request {
	if name, ok := strings.CutPrefix(target(o), c.kind.gvk.Kind+"/"); ok {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	}
	return nil
}

// retargeted accepts an update of an autoscaler only if it changes the target, or may change the result of conflict. It
// drops the other updates, because the status of an autoscaler changes every few seconds.
var retargeted = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return target(e.ObjectOld) != target(e.ObjectNew) || scalesToZero(e.ObjectOld) != scalesToZero(e.ObjectNew) ||
		(kedaOwner(e.ObjectOld) == nil) != (kedaOwner(e.ObjectNew) == nil)
}}
