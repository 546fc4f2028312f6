// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const frontDoor = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front-door}
spec: {defaultBackend: {service: {name: missing, port: {number: 80}}}}
`

// checkOptional enables the optional controllers, as documented for OLM, and disables them again. To enable them, it
// grants their permissions and then sets USELESS_CONTROLLERS.
func checkOptional(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "optional")
	mustRead(t, office+"---"+frontDoor, "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/office", "--timeout=1m")
	bindings := []string{"useless-podcount", "useless-ingress"}
	t.Cleanup(func() { cleanUp(t, append([]string{"clusterrolebinding"}, bindings...)...) })
	for _, binding := range bindings {
		must(t, "kubectl", "create", "clusterrolebinding", binding, "--clusterrole", binding+"-role", "--serviceaccount", system+":useless-controller-manager")
	}
	configured := environmentOf(t, documentedSubscription(t))
	configure(t, append(slices.Clone(configured),
		corev1.EnvVar{Name: "USELESS_CONTROLLERS", Value: "*,podcount,ingress"},
		corev1.EnvVar{Name: "USELESS_INGRESS_ANNOTATION", Value: "foo=bar"},
	))
	must(t, "kubectl", "wait", "-n", namespace, "replicasets", "-l", "app=office", "--for=jsonpath={.metadata.labels.pod-count}=2", "--timeout=1m")
	must(t, "kubectl", "wait", "-n", namespace, "ingress/front-door", "--for=jsonpath={.metadata.annotations.foo}=bar", "--timeout=1m")
	configure(t, configured)
}

// environmentOf returns the environment variables of the Subscription in a manifest.
func environmentOf(t *testing.T, manifest string) []corev1.EnvVar {
	t.Helper()
	documents := strings.Split(manifest, "---\n")
	var s struct {
		Spec struct {
			Config struct{ Env []corev1.EnvVar }
		}
	}
	if err := yaml.Unmarshal([]byte(documents[len(documents)-1]), &s); err != nil {
		t.Fatal(err)
	}
	return s.Spec.Config.Env
}

// configure sets the environment of the operator in the Subscription, and waits until the operator runs with it.
func configure(t *testing.T, environment []corev1.EnvVar) {
	t.Helper()
	patch, err := yaml.Marshal(map[string]any{"spec": map[string]any{"config": map[string]any{"env": environment}}})
	if err != nil {
		t.Fatal(err)
	}
	must(t, "kubectl", "patch", "-n", system, "subscription.operators.coreos.com", "useless-operator", "--type=merge", "-p", string(patch))
	awaitConfiguration(t, environment)
}

// awaitConfiguration waits until the operator runs with the Subscription's configuration. OLM reads the Subscription
// from a cache. If the cache does not yet show the installed version, OLM first creates the Deployment without the
// configuration, and changes it later.
func awaitConfiguration(t *testing.T, environment []corev1.EnvVar) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		deployment := get[appsv1.Deployment](t, "-n", system, "deployment", "useless-controller-manager")
		running := slices.DeleteFunc(deployment.Spec.Template.Spec.Containers[0].Env, func(env corev1.EnvVar) bool {
			return env.ValueFrom != nil || !strings.HasPrefix(env.Name, "USELESS_") // set by the bundle or by OLM itself
		})
		if diff := cmp.Diff(environment, running); diff != "" {
			return "the Deployment does not have the Subscription's configuration (-want +got):\n" + diff
		}
		return ""
	})
	must(t, "kubectl", "rollout", "status", "-n", system, "deployment/useless-controller-manager", "--timeout=2m")
}
