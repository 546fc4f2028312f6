// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"container.training/useless/internal/schedule"
)

// Names of the cache's indexes.
const (
	workloadsWithAnnotations = "useless/schedule"
	autoscalersByTarget      = "useless/target"
)

// CacheOptions returns options that keep only the fields of workloads and HorizontalPodAutoscalers that the controller
// reads.
func (o Options) CacheOptions() map[client.Object]cache.ByObject {
	options := map[client.Object]cache.ByObject{&autoscalingv2.HorizontalPodAutoscaler{}: {Transform: trimAutoscaler}}
	enabled, _ := kindsNamed(o.Kinds) // Validate returns the error
	for _, k := range enabled {
		if k.trim != nil {
			options[k.object] = cache.ByObject{Transform: k.transform}
		}
	}
	return options
}

// transform trims an object before it is cached.
func (k *kind) transform(o any) (any, error) {
	if object, ok := o.(client.Object); ok {
		return k.trim(object), nil
	}
	return o, nil
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

func indexAnnotated(ctx context.Context, indexer client.FieldIndexer, kind client.Object) error {
	return indexer.IndexField(ctx, kind, workloadsWithAnnotations, func(o client.Object) []string {
		if hasSchedule(o) {
			return []string{"true"}
		}
		return nil
	})
}

func indexAutoscalers(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, &autoscalingv2.HorizontalPodAutoscaler{}, autoscalersByTarget,
		func(o client.Object) []string { return []string{target(o)} })
}

// annotated accepts the events of workloads that have, or had, annotations of a schedule.
var annotated = predicate.Or(predicate.NewPredicateFuncs(hasSchedule), predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc:  func(e event.UpdateEvent) bool { return hasSchedule(e.ObjectOld) },
})

func hasSchedule(o client.Object) bool { return schedule.HasAny(o.GetAnnotations()) }
