// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/controller/podcount"
)

var podCountScenarios = []scenario{{
	name: "pod count", controller: podcount.Name, kinds: []string{"ReplicaSet", "Pod"}, steps: []step{
		{what: "create", do: create(replicaSet())},
		{what: "create Pods", do: pods("a", "b", "c")},
		{what: "orphan a Pod", do: patch(pod("a"), `{"metadata":{"ownerReferences":null}}`)},
		{what: "a Pod succeeds", do: patchStatus(pod("b"), `{"status":{"phase":"Succeeded"}}`)},
		{what: "delete that Pod and create other Pods", do: func(ctx context.Context, c client.Client) error {
			return errors.Join(remove(pod("b"))(ctx, c), pods("d", "e")(ctx, c))
		}},
		{what: "remove the label", do: patch(replicaSet(), `{"metadata":{"labels":{"pod-count":null}}}`)},
		{what: "pause",
			do: patch(replicaSet(), `{"metadata":{"annotations":{"useless.container.training/paused":"true"}}}`)},
		{what: "delete a Pod while paused", do: remove(pod("c"))},
		{what: "change the label while paused",
			do: patch(replicaSet(), `{"metadata":{"labels":{"pod-count":"many"}}}`)},
		{what: "resume",
			do: patch(replicaSet(), `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)},
		{what: "delete", do: remove(replicaSet())},
	},
}, {
	name: "pod count of a ReplicaSet that is recreated", controller: podcount.Name,
	kinds: []string{"ReplicaSet", "Pod"}, steps: []step{
		{what: "create", do: create(replicaSet())},
		{what: "create Pods", do: pods("a", "b", "c")},
		{what: "delete and orphan the Pods",
			do: remove(replicaSet(), client.PropagationPolicy(metav1.DeletePropagationOrphan))},
		{what: "create again", do: create(replicaSet())},
		{what: "create a Pod", do: pods("d")},
		{what: "delete", do: remove(replicaSet())},
	},
}}

func replicaSet() *appsv1.ReplicaSet {
	labels := map[string]string{"app": "web"}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: labels}}
	rs.Spec.Selector, rs.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
	return rs
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// pods creates Pods of the ReplicaSet.
func pods(names ...string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		rs := replicaSet()
		err := c.Get(ctx, client.ObjectKeyFromObject(rs), rs)
		for _, name := range names {
			p := pod(name)
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs,
				appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
			err = errors.Join(err, c.Create(ctx, p))
		}
		return err
	}
}
