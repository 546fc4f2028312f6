// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"container.training/useless/internal/schedule"
)

// Names of the cache's indexes.
const (
	deploymentsWithAnnotations = "useless/schedule"
	autoscalersByTarget        = "useless/target"
)

// CacheOptions returns options that keep only the fields of Deployments and HorizontalPodAutoscalers that the
// controller reads.
func (Options) CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&appsv1.Deployment{}:                     {Transform: trimDeployment},
		&autoscalingv2.HorizontalPodAutoscaler{}: {Transform: trimAutoscaler},
	}
}

func trimDeployment(o any) (any, error) {
	d, ok := o.(*appsv1.Deployment)
	if !ok {
		return o, nil
	}
	trimmed := &appsv1.Deployment{
		ObjectMeta: d.ObjectMeta,
		Spec:       appsv1.DeploymentSpec{Replicas: d.Spec.Replicas, Paused: d.Spec.Paused},
	}
	trimmed.ManagedFields = nil
	delete(trimmed.Annotations, corev1.LastAppliedConfigAnnotation) // a copy of the whole object
	for _, c := range d.Spec.Template.Spec.Containers {
		trimmed.Spec.Template.Spec.Containers = append(trimmed.Spec.Template.Spec.Containers,
			corev1.Container{Resources: c.Resources})
	}
	return trimmed, nil
}

func trimAutoscaler(o any) (any, error) {
	hpa, ok := o.(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok {
		return o, nil
	}
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: hpa.Namespace, Name: hpa.Name, UID: hpa.UID, ResourceVersion: hpa.ResourceVersion,
			OwnerReferences: hpa.OwnerReferences,
		},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: hpa.Spec.ScaleTargetRef, MinReplicas: hpa.Spec.MinReplicas,
		},
	}, nil
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &appsv1.Deployment{}, deploymentsWithAnnotations, func(o client.Object) []string {
		if schedule.HasAny(o.GetAnnotations()) {
			return []string{"true"}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return indexer.IndexField(ctx, &autoscalingv2.HorizontalPodAutoscaler{}, autoscalersByTarget,
		func(o client.Object) []string {
			return []string{target(o)}
		})
}

// annotated accepts the events of Deployments that have, or had, annotations of a schedule.
var annotated = predicate.Or(predicate.NewPredicateFuncs(hasSchedule), predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc:  func(e event.UpdateEvent) bool { return hasSchedule(e.ObjectOld) },
})

func hasSchedule(o client.Object) bool { return schedule.HasAny(o.GetAnnotations()) }
