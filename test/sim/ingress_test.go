// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	ingresses "container.training/useless/internal/controller/ingress"
	"container.training/useless/test/sim"
)

var ingressScenarios = []scenario{{
	name: "ingress", controller: ingresses.Name, kinds: []string{"Ingress"}, steps: []step{
		createIngress,
		{what: "change the annotation", do: annotate(sim.IngressAnnotation, `"no"`)},
		{what: "remove the annotation", do: annotate(sim.IngressAnnotation, `null`)},
		{what: "add another annotation", do: annotate("example.com/other", `"mine"`)},
		{what: "opt out", do: annotate(v1beta1.IngressAnnotationsAnnotation, `"Disabled"`)},
		{what: "change the annotation while opted out", do: annotate(sim.IngressAnnotation, `"no"`)},
		{what: "opt in again", do: annotate(v1beta1.IngressAnnotationsAnnotation, `null`)},
		{what: "pause", do: annotate("useless.container.training/paused", `"true"`)},
		{what: "change the annotation while paused", do: annotate(sim.IngressAnnotation, `"maybe"`)},
		{what: "resume", do: annotate("useless.container.training/paused", `null`)},
		deleteIngress,
	},
}, {
	name: "an annotation that another field manager also applies", controller: ingresses.Name,
	kinds: []string{"Ingress"}, steps: []step{
		createIngress,
		{what: "another manager applies the annotation", do: func(ctx context.Context, c client.Client) error {
			return c.Patch(ctx, ingress(), client.RawPatch(types.ApplyPatchType, fmt.Appendf(nil,
				`{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"annotations":{%q:"yes"}}}`,
				sim.IngressAnnotation)),
				client.FieldOwner("other"))
		}},
		{what: "opt out", do: annotate(v1beta1.IngressAnnotationsAnnotation, `"Disabled"`)},
		{what: "delete", do: remove(ingress())},
		{what: "create again, opted out", do: func(ctx context.Context, c client.Client) error {
			out := ingress()
			out.Annotations = map[string]string{
				v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled, sim.IngressAnnotation: "yes",
			}
			return c.Create(ctx, out)
		}},
		deleteIngress,
	},
}, {
	name: "a value that the operator overwrites and restores", controller: ingresses.Name, kinds: []string{"Ingress"},
	steps: []step{
		{what: "create with another value", do: func(ctx context.Context, c client.Client) error {
			with := ingress()
			with.Annotations = map[string]string{sim.IngressAnnotation: "no"}
			return c.Create(ctx, with)
		}},
		{what: "opt out", do: annotate(v1beta1.IngressAnnotationsAnnotation, `"Disabled"`)},
		{what: "opt in again", do: annotate(v1beta1.IngressAnnotationsAnnotation, `null`)},
		{what: "change the annotation and opt out", do: patch(ingress(), fmt.Sprintf(
			`{"metadata":{"annotations":{%q:"maybe",%q:"Disabled"}}}`,
			sim.IngressAnnotation, v1beta1.IngressAnnotationsAnnotation))},
		{what: "opt in", do: annotate(v1beta1.IngressAnnotationsAnnotation, `null`)},
		{what: "remove the annotation", do: annotate(sim.IngressAnnotation, `null`)},
		{what: "opt out again", do: annotate(v1beta1.IngressAnnotationsAnnotation, `"Disabled"`)},
		deleteIngress,
	},
}, {
	name: "an annotation that a user keeps changing", controller: ingresses.Name, kinds: []string{"Ingress"},
	steps: slices.Concat([]step{createIngress}, slices.Repeat([]step{
		{what: "change the annotation", do: annotate(sim.IngressAnnotation, `"no"`)},
	}, 7), []step{deleteIngress}),
}}

// The first and last step of most Ingress scenarios.
var (
	createIngress = step{what: "create", do: create(ingress())}
	deleteIngress = step{what: "delete", do: remove(ingress())}
)

func ingress() *networkingv1.Ingress {
	i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	i.Spec.DefaultBackend = &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80},
	}}
	return i
}

// annotate sets an annotation of the Ingress. The value is JSON.
func annotate(key, value string) func(context.Context, client.Client) error {
	return patch(ingress(), fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value))
}
