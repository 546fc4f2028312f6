// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"fmt"
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
)

// conflict says which autoscaler would undo a stop, or nothing. Kubernetes turns a HorizontalPodAutoscaler off while there
// are no replicas, except where it has made none itself; KEDA turns its own on again.
func (s *schedule) conflict(autoscalers []autoscalingv2.HorizontalPodAutoscaler) string {
	if s.stop == nil {
		return ""
	}
	for i := range autoscalers {
		hpa := &autoscalers[i]
		if owner := metav1.GetControllerOfNoCopy(hpa); owner != nil && strings.HasPrefix(owner.APIVersion, "keda.sh/") {
			return fmt.Sprintf("%s %s would undo a stop, so there is none: pause it with its annotation autoscaling.keda.sh/paused-replicas instead",
				owner.Kind, owner.Name)
		}
		if scalesToZero(hpa) {
			return fmt.Sprintf("HorizontalPodAutoscaler %s may have made 0 replicas itself and would undo a stop then, so there is none: make its minReplicas at least 1",
				hpa.Name)
		}
		if s.stopReplicas > 0 {
			return fmt.Sprintf(`%s "%d": HorizontalPodAutoscaler %s would undo a stop, so there is none; use "0", which turns it off meanwhile`,
				StopReplicasAnnotation, s.stopReplicas, hpa.Name)
		}
	}
	return ""
}

// scalesToZero reports whether an autoscaler may make no replicas, as Kubernetes allows by default from 1.37.
func scalesToZero(o client.Object) bool {
	least := o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MinReplicas
	return least != nil && *least == 0
}

// autoscalersOf returns the autoscalers of a Deployment. They belong to the cache.
func (c *Controller) autoscalersOf(ctx context.Context, d *appsv1.Deployment) ([]autoscalingv2.HorizontalPodAutoscaler, error) {
	list := &autoscalingv2.HorizontalPodAutoscalerList{}
	err := c.client.List(ctx, list, client.InNamespace(d.Namespace), client.MatchingFields{autoscalersByTarget: d.Name}, client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// target returns the name of the Deployment that an autoscaler scales, or nothing.
func target(o client.Object) string {
	ref := o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.ScaleTargetRef
	if group, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || group.Group != appsv1.GroupName || ref.Kind != "Deployment" {
		return ""
	}
	return ref.Name
}

// deploymentOf wakes the Deployment that an autoscaler scales.
func deploymentOf(_ context.Context, o client.Object) []reconcile.Request {
	if name := target(o); name != "" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	}
	return nil
}

// retargeted lets pass what changes about an autoscaler's target, and whether it conflicts with stops. The rest changes
// every few seconds.
var retargeted = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return target(e.ObjectOld) != target(e.ObjectNew) || scalesToZero(e.ObjectOld) != scalesToZero(e.ObjectNew) ||
		(metav1.GetControllerOfNoCopy(e.ObjectOld) == nil) != (metav1.GetControllerOfNoCopy(e.ObjectNew) == nil)
}}
