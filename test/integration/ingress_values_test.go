// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
)

// overwritten returns the annotation in which the operator saves values that it has overwritten. values maps annotation
// keys to the old values. A nil value means that the operator has nothing to restore.
func overwritten(values map[string]any) map[string]string {
	text := &bytes.Buffer{}
	encoder := json.NewEncoder(text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(values); err != nil {
		panic(err) // a map of strings can be encoded
	}
	return map[string]string{v1beta1.OriginalAnnotationsAnnotation: strings.TrimSpace(text.String())}
}

// ingressStep is a run of the operator with certain flags, and its expected effect on an Ingress.
type ingressStep struct {
	name   string
	change string // a merge patch that another client sends before the operator starts; may be empty
	flags  ingress.Options
	want   []map[string]string // the expected annotations in addition to foreign
	note   string              // part of the note of the expected event; if empty, events are not checked
	writes int                 // the expected number of writes to the Ingress
}

// runIngressSteps runs the steps one after the other on an Ingress.
func runIngressSteps(t *testing.T, web *networkingv1.Ingress, steps []ingressStep) {
	t.Helper()
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			if step.change != "" {
				mergePatch(t, web, "%s", step.change)
			}
			requests := newRequestCounter()
			stop := runOperatorFor(t, operatorOptions{
				controllers: func(options *controller.Options) {
					options.Selection = []string{"*", ingress.Name}
					options.Ingress = step.flags
				},
				transport: func(config *rest.Config) { config.Wrap(requests.wrap) },
			})
			defer stop()
			waitForOther(t, step.flags)
			waitForAnnotations(t, web.Namespace, web.Name, append(step.want, foreign)...)
			if step.note != "" {
				waitForNote(t, web, ingress.EventAnnotationsEnsured, step.note)
			}
			requests.waitUntilIdle(t)
			waitForAnnotations(t, web.Namespace, web.Name, append(step.want, foreign)...)
			if writes := requests.of(web.Namespace)["PATCH ingresses"]; writes != step.writes {
				t.Errorf("%d writes of the Ingress, want %d; requests: %v", writes, step.writes, requests.of(web.Namespace))
			}
		})
	}
}

// waitForOther creates an Ingress in another namespace, and waits until the running operator has annotated it.
func waitForOther(t *testing.T, flags ingress.Options) {
	t.Helper()
	other := newIngress(newNamespace(t), "other", nil)
	if len(flags.Classes) > 0 {
		other.Spec.IngressClassName = &flags.Classes[0]
	}
	if err := admin(t).Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	waitForAnnotations(t, other.Namespace, other.Name, flags.Annotations)
}

// TestIngressOriginalValues restarts the operator with other flags in each step. The operator overwrites and restores
// values of another client. In each step, it writes the Ingress at most once.
func TestIngressOriginalValues(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	mine := map[string]string{"foo": "mine <&> \"quoted\" é\n"}
	web := createIngress(t, newNamespace(t), "web", mergedMaps(foreign, mine))
	saved := overwritten(map[string]any{"foo": mine["foo"]})
	foo := func(value string) map[string]string { return map[string]string{"foo": value} }
	b, c := map[string]string{"b": "2"}, map[string]string{"c": "3"}
	disabled := map[string]string{v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled}
	runIngressSteps(t, web, []ingressStep{
		{
			name: "a value is overwritten and saved", flags: ingress.Options{Annotations: fooBar},
			want: []map[string]string{fooBar, saved}, note: "Set annotation foo", writes: 1,
		},
		{
			name: "a restart writes nothing", flags: ingress.Options{Annotations: fooBar},
			want: []map[string]string{fooBar, saved},
		},
		{
			name: "another configured value", flags: ingress.Options{Annotations: foo("baz")},
			want: []map[string]string{foo("baz"), saved}, writes: 1,
		},
		{
			name: "the key is replaced by another one", flags: ingress.Options{Annotations: b},
			want: []map[string]string{mine, b, overwritten(map[string]any{"b": nil})}, note: "Restored annotation foo", writes: 1,
		},
		{
			name: "the key is added again", flags: ingress.Options{Annotations: mergedMaps(fooBar, b)},
			want: []map[string]string{fooBar, b, overwritten(map[string]any{"b": nil, "foo": mine["foo"]})}, writes: 1,
		},
		{
			name: "no annotations", want: []map[string]string{mine}, note: "Removed annotation b", writes: 1,
		},
		{
			name: "two keys", flags: ingress.Options{Annotations: mergedMaps(fooBar, c)},
			want: []map[string]string{fooBar, c, overwritten(map[string]any{"c": nil, "foo": mine["foo"]})}, writes: 1,
		},
		{
			name: "a value that another client has changed since then is kept", change: `{"metadata":{"annotations":{"foo":"changed"}}}`,
			flags: ingress.Options{Annotations: c},
			want:  []map[string]string{foo("changed"), c, overwritten(map[string]any{"c": nil})}, writes: 1,
		},
		{
			name: "the newest value is saved", flags: ingress.Options{Annotations: mergedMaps(fooBar, c)},
			want: []map[string]string{fooBar, c, overwritten(map[string]any{"c": nil, "foo": "changed"})}, writes: 1,
		},
		{
			name:   "an opt-out restores the value",
			change: fmt.Sprintf(`{"metadata":{"annotations":{%q:"Disabled"}}}`, v1beta1.IngressAnnotationsAnnotation),
			flags:  ingress.Options{Annotations: mergedMaps(fooBar, c)},
			want:   []map[string]string{foo("changed"), disabled}, writes: 1,
		},
	})
}

// mergedMaps returns the union of maps.
func mergedMaps(all ...map[string]string) map[string]string {
	union := map[string]string{}
	for _, one := range all {
		maps.Copy(union, one)
	}
	return union
}

// TestIngressIfNotPresent changes the policy between IfNotPresent and Always.
func TestIngressIfNotPresent(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	mine := map[string]string{"foo": "mine"}
	b := func(value string) map[string]string { return map[string]string{"b": value} }
	flags := func(policy ingress.Policy, valueOfB string) ingress.Options {
		return ingress.Options{Annotations: mergedMaps(fooBar, b(valueOfB)), Policy: policy}
	}
	web := createIngress(t, newNamespace(t), "web", mergedMaps(foreign, mine))
	runIngressSteps(t, web, []ingressStep{
		{
			name: "only the absent annotation is set", flags: flags(ingress.PolicyIfNotPresent, "2"),
			want: []map[string]string{mine, b("2")}, note: "Set annotation b", writes: 1,
		},
		{
			name: "the operator's own value follows the configuration", flags: flags(ingress.PolicyIfNotPresent, "3"),
			want: []map[string]string{mine, b("3")}, writes: 1,
		},
		{
			name: "a value that another client has changed is kept", change: `{"metadata":{"annotations":{"b":"changed"}}}`,
			flags: flags(ingress.PolicyIfNotPresent, "3"), want: []map[string]string{mine, b("changed")},
		},
		{
			name: "the policy Always overwrites both", flags: flags(ingress.PolicyAlways, "3"),
			want: []map[string]string{fooBar, b("3"), overwritten(map[string]any{"b": "changed", "foo": "mine"})}, writes: 1,
		},
		{
			name: "the policy IfNotPresent restores both", flags: flags(ingress.PolicyIfNotPresent, "3"),
			want: []map[string]string{mine, b("changed")}, note: "Restored annotations b, foo", writes: 1,
		},
		{
			name: "a removed annotation is set", change: `{"metadata":{"annotations":{"b":null}}}`,
			flags: flags(ingress.PolicyIfNotPresent, "3"), want: []map[string]string{mine, b("3")}, writes: 1,
		},
		{name: "no annotations", want: []map[string]string{mine}, note: "Removed annotation b", writes: 1},
	})
}

// TestIngressClass changes the selected classes and the classes of Ingresses.
func TestIngressClass(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	mine := map[string]string{"foo": "mine"}
	web := newIngress(newNamespace(t), "web", mergedMaps(foreign, mine))
	web.Spec.IngressClassName = new("nginx")
	if err := admin(t).Create(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	flags := func(classes ...string) ingress.Options { return ingress.Options{Annotations: fooBar, Classes: classes} }
	saved := overwritten(map[string]any{"foo": "mine"})
	runIngressSteps(t, web, []ingressStep{
		{name: "another class", flags: flags("haproxy"), want: []map[string]string{mine}},
		{name: "two classes", flags: flags("haproxy", "nginx"), want: []map[string]string{fooBar, saved}, writes: 1},
		{name: "all classes", flags: flags(), want: []map[string]string{fooBar, saved}},
		{name: "another class restores the value", flags: flags("haproxy"), want: []map[string]string{mine}, writes: 1},
	})
	t.Run("an Ingress changes its class", func(t *testing.T) { testIngressChangesClass(t, flags("nginx", "haproxy")) })
}

func testIngressChangesClass(t *testing.T, flags ingress.Options) {
	runOperatorFor(t, operatorOptions{controllers: func(options *controller.Options) {
		options.Selection = []string{"*", ingress.Name}
		options.Ingress = flags
	}})
	const deprecated = "kubernetes.io/ingress.class"
	namespace, mine := newNamespace(t), map[string]string{"foo": "mine"}
	old, bare := createIngress(t, namespace, "old", map[string]string{deprecated: "haproxy"}), createIngress(t, namespace, "bare", mine)
	waitForAnnotations(t, namespace, "old", map[string]string{deprecated: "haproxy"}, fooBar)
	mergePatch(t, old, `{"metadata":{"annotations":{%q:"traefik"}}}`, deprecated)
	waitForAnnotations(t, namespace, "old", map[string]string{deprecated: "traefik"})

	waitForAnnotations(t, namespace, "bare", mine) // an Ingress without a class is not selected
	for range 7 {                                  // if the operator counted these changes as reverts, it would warn
		mergePatch(t, bare, `{"spec":{"ingressClassName":"nginx"}}`)
		waitForAnnotations(t, namespace, "bare", fooBar, overwritten(map[string]any{"foo": "mine"}))
		mergePatch(t, bare, `{"spec":{"ingressClassName":"traefik"}}`)
		waitForAnnotations(t, namespace, "bare", mine)
	}
	if warnings := eventsOn(t, bare, ingress.EventAnnotationReverted); len(warnings) > 0 {
		t.Errorf("unexpected events: %v", warnings)
	}
}

// TestIngressOfEarlierVersion starts the operator with an Ingress that an earlier version of the operator has changed.
// The earlier version set one annotation and overwrote another. It did not save the old value.
func TestIngressOfEarlierVersion(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	web := createIngress(t, newNamespace(t), "web", mergedMaps(foreign, map[string]string{"foo": "lost"}))
	before := mergedMaps(fooBar, map[string]string{"b": "2"})
	applyAs(t, web, "useless-operator-ingress-annotations", before)
	runIngressSteps(t, web, []ingressStep{
		{name: "the same flags write nothing", flags: ingress.Options{Annotations: before}, want: []map[string]string{before}},
		{
			name:  "the policy IfNotPresent writes nothing",
			flags: ingress.Options{Annotations: before, Policy: ingress.PolicyIfNotPresent}, want: []map[string]string{before},
		},
		{
			name: "a dropped key is removed", flags: ingress.Options{Annotations: fooBar}, want: []map[string]string{fooBar},
			note: "Removed annotation b", writes: 1,
		},
		{
			name: "a value that another client sets later is saved", change: `{"metadata":{"annotations":{"b":"mine"}}}`,
			flags: ingress.Options{Annotations: before}, want: []map[string]string{before, overwritten(map[string]any{"b": "mine"})}, writes: 1,
		},
		{name: "no annotations", want: []map[string]string{{"b": "mine"}}, note: "Removed annotation foo", writes: 1},
	})
}

// TestIngressSharedValue applies the operator's value as another field manager. When the annotation is no longer
// configured, the operator must keep the value.
func TestIngressSharedValue(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	web := createIngress(t, newNamespace(t), "web", mergedMaps(foreign, map[string]string{"foo": "mine"}))
	flags := ingress.Options{Annotations: fooBar}
	runIngressSteps(t, web, []ingressStep{
		{name: "a value is overwritten", flags: flags, want: []map[string]string{fooBar, overwritten(map[string]any{"foo": "mine"})}, writes: 1},
	})
	applyAs(t, web, "argocd", fooBar)
	runIngressSteps(t, web, []ingressStep{
		{name: "the value is kept, because another client applies it too", want: []map[string]string{fooBar}, writes: 1},
	})
}

// TestIngressLargeValue overwrites a value that is too large to save.
func TestIngressLargeValue(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	large := map[string]string{"foo": strings.Repeat("x", 200<<10)}
	web := createIngress(t, newNamespace(t), "web", mergedMaps(foreign, large))
	runIngressSteps(t, web, []ingressStep{
		{
			name: "the value is overwritten", flags: ingress.Options{Annotations: fooBar}, writes: 1,
			want: []map[string]string{fooBar, overwritten(map[string]any{"foo": nil})},
			note: "Set annotation foo; the old value of annotation foo is too large to save",
		},
		{name: "the annotation is removed", note: "Removed annotation foo", writes: 1},
	})
}

// applyAs applies annotations to an Ingress by server-side apply, as a field manager.
func applyAs(t *testing.T, web *networkingv1.Ingress, manager string, annotations map[string]string) {
	t.Helper()
	body, err := json.Marshal(&metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "Ingress"},
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
	})
	if err != nil {
		t.Fatal(err)
	}
	patch := client.RawPatch(types.ApplyPatchType, body)
	if err := admin(t).Patch(t.Context(), web, patch, client.FieldOwner(manager), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}
