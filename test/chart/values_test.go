// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"container.training/useless/test/internal/executable"
	"container.training/useless/test/internal/installer"
)

// selections lists --set flags with the objects that they remove (-) and add (+).
var selections = []struct {
	reason string
	set    []string
	want   []string
}{
	{"the operator has no permissions for a disabled controller", []string{"controllers.virtualmachine.enabled=false"}, []string{
		"-ClusterRole useless-virtualmachine-role", "-ClusterRoleBinding useless-virtualmachine-rolebinding",
		"-ValidatingAdmissionPolicy useless-operator-servers",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-virtualmachine",
		"-ValidatingAdmissionPolicyBinding useless-operator-servers",
	}},
	{"without the controller schedule, the operator has no permissions for its kinds", []string{"controllers.schedule.enabled=false"}, []string{
		"-ClusterRole useless-schedule-cronjobs-role", "-ClusterRole useless-schedule-deployments-role",
		"-ClusterRole useless-schedule-horizontalpodautoscalers-role", "-ClusterRole useless-schedule-role",
		"-ClusterRole useless-schedule-scaledobjects-role", "-ClusterRole useless-schedule-statefulsets-role",
		"-ClusterRole useless-schedule-virtualmachines-role",
		"-ClusterRoleBinding useless-schedule-cronjobs-rolebinding", "-ClusterRoleBinding useless-schedule-deployments-rolebinding",
		"-ClusterRoleBinding useless-schedule-horizontalpodautoscalers-rolebinding", "-ClusterRoleBinding useless-schedule-rolebinding",
		"-ClusterRoleBinding useless-schedule-scaledobjects-rolebinding", "-ClusterRoleBinding useless-schedule-statefulsets-rolebinding",
		"-ClusterRoleBinding useless-schedule-virtualmachines-rolebinding",
		"-Role useless-schedule-role", "-RoleBinding useless-schedule-rolebinding",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-cronjobs",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-deployments",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-horizontalpodautoscalers",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-scaledobjects",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-statefulsets",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-virtualmachines",
	}},
	{"an optional controller has its permissions and its policy", []string{"controllers.podcount.enabled=true"}, []string{
		"+ClusterRole useless-podcount-role", "+ClusterRoleBinding useless-podcount-rolebinding",
		"+ValidatingAdmissionPolicyBinding useless-operator-changes-podcount",
	}},
	{"without policies, optional controllers have none either", []string{"admissionPolicies.enabled=false", "controllers.ingress.enabled=true"}, []string{
		"+ClusterRole useless-ingress-role", "+ClusterRoleBinding useless-ingress-rolebinding",
		"-ValidatingAdmissionPolicy useless-operator-changes", "-ValidatingAdmissionPolicy useless-operator-servers",
		"-ValidatingAdmissionPolicy useless-operator-switches", "-ValidatingAdmissionPolicy useless-served-versions",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-cronjobs",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-deployments",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-horizontalpodautoscalers",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-scaledobjects",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-statefulsets",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-schedule-virtualmachines",
		"-ValidatingAdmissionPolicyBinding useless-operator-changes-virtualmachine",
		"-ValidatingAdmissionPolicyBinding useless-operator-servers", "-ValidatingAdmissionPolicyBinding useless-operator-switches",
		"-ValidatingAdmissionPolicyBinding useless-served-versions",
	}},
	{"another issuer replaces the self-signed one", []string{"certificates.mode=certManager", "certificates.issuerRef.name=ca"}, []string{
		"+Certificate useless-serving-cert", "-ClusterRole useless-certificates-role",
		"-ClusterRoleBinding useless-certificates-rolebinding", "-Role useless-certificates-role",
		"-RoleBinding useless-certificates-rolebinding", "-Secret useless-webhook-server-cert",
	}},
	{"the operator needs no permission to issue certificates", secretMode, []string{
		"-ClusterRole useless-certificates-role", "-ClusterRoleBinding useless-certificates-rolebinding",
		"-Role useless-certificates-role", "-RoleBinding useless-certificates-rolebinding", "-Secret useless-webhook-server-cert",
	}},
	{"without metrics, the operator authenticates no clients", []string{"metrics.enabled=false"}, []string{
		"-ClusterRole useless-metrics-auth-role", "-ClusterRole useless-metrics-reader",
		"-ClusterRoleBinding useless-metrics-auth-rolebinding", "-Service useless-controller-manager-metrics-service",
	}},
	{"one Pod must not block the drain of a node", []string{"replicas=1"}, []string{"-PodDisruptionBudget useless-controller-manager"}},
	{"the cluster has no network policies", []string{"networkPolicy.enabled=false"}, []string{"-NetworkPolicy useless-controller-manager"}},
	{"the cluster does not use API Priority and Fairness", []string{"flowControl.enabled=false"}, []string{"-FlowSchema useless-leader-election"}},
	{"an administrator installs the CustomResourceDefinitions", []string{"crds.install=false"}, []string{
		"-CustomResourceDefinition machines.useless.container.training",
		"-CustomResourceDefinition switches.useless.container.training", "-CustomResourceDefinition virtualmachines.cloudnative.tw",
	}},
	{"a parent chart sets values for all its charts", []string{"global.foo=bar", "enabled=true"}, nil},
}

// TestValuesSelectObjects renders the chart with some values, and compares the objects with those of the default
// values.
func TestValuesSelectObjects(t *testing.T) {
	defaults := rendered(t)
	for _, c := range selections {
		t.Run(strings.Join(c.set, " "), func(t *testing.T) {
			t.Parallel()
			objects := rendered(t, c.set...)
			var got []string
			for name := range defaults {
				if objects[name] == nil {
					got = append(got, "-"+name)
				}
			}
			for name := range objects {
				if defaults[name] == nil {
					got = append(got, "+"+name)
				}
			}
			byObject := func(a, b string) int { return strings.Compare(a[1:], b[1:]) }
			slices.SortFunc(got, byObject)
			if diff := gocmp.Diff(slices.SortedFunc(slices.Values(c.want), byObject), got); diff != "" {
				t.Errorf("%s: changed objects (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

const caBundle = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----"

// secretMode sets the values for a certificate of the user.
var secretMode = []string{"certificates.mode=secret", "certificates.secretName=mine", "certificates.caBundle=" + caBundle}

// TestSecretMode checks that the API server trusts the certificate of the user, and that the Pods mount it.
func TestSecretMode(t *testing.T) {
	t.Parallel()
	objects := rendered(t, secretMode...)
	encoded := base64.StdEncoding.EncodeToString([]byte(caBundle))
	for name, webhooks := range map[string]int{
		"ValidatingWebhookConfiguration useless-validating-webhook-configuration": 2,
		"CustomResourceDefinition machines.useless.container.training":            1,
		"CustomResourceDefinition switches.useless.container.training":            0,
	} {
		raw, err := objects[name].MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(raw), `"clientConfig":{"caBundle":"`+encoded+`"`); got != webhooks {
			t.Errorf("%s: the CA certificate appears %d times, want %d", name, got, webhooks)
		}
	}
	want := []any{map[string]any{"name": "webhook-certs", "secret": map[string]any{"secretName": "mine"}}}
	if diff := gocmp.Diff(want, podSpec(t, objects)["volumes"]); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	checkMonitor(t, rendered(t, append(secretMode, "metrics.serviceMonitor.enabled=true")...))
}

// checkMonitor checks that Prometheus verifies the certificate of the user.
func checkMonitor(t *testing.T, objects map[string]*unstructured.Unstructured) {
	t.Helper()
	data, _, err := unstructured.NestedStringMap(objects["ConfigMap useless-metrics-ca"].Object, "data")
	if err != nil || data["ca.crt"] != caBundle {
		t.Errorf("got the CA certificate %q and error %v, want %q", data["ca.crt"], err, caBundle)
	}
	endpoints, _, err := unstructured.NestedSlice(objects["ServiceMonitor useless-controller-manager"].Object, "spec", "endpoints")
	if err != nil || len(endpoints) != 1 {
		t.Fatalf("got endpoints %v and error %v, want one endpoint", endpoints, err)
	}
	want := map[string]any{
		"ca":         map[string]any{"configMap": map[string]any{"key": "ca.crt", "name": "useless-metrics-ca"}},
		"serverName": "useless-webhook-service.useless-system.svc",
	}
	if diff := gocmp.Diff(want, endpoints[0].(map[string]any)["tlsConfig"]); diff != "" {
		t.Errorf("TLS configuration of the ServiceMonitor (-want +got):\n%s", diff)
	}
}

// TestCRDsAreKept checks the annotation that keeps an object when its release is uninstalled. Only
// CustomResourceDefinitions may have it.
func TestCRDsAreKept(t *testing.T) {
	for value, want := range map[string]int{"true": 3, "false": 0} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			kept := 0
			for name, object := range rendered(t, "crds.keep="+value) {
				policy, found := object.GetAnnotations()["helm.sh/resource-policy"]
				if !found {
					continue
				}
				if kept++; policy != "keep" || object.GetKind() != "CustomResourceDefinition" {
					t.Errorf("%s has the policy %q", name, policy)
				}
			}
			if kept != want {
				t.Errorf("%d objects are kept, want %d", kept, want)
			}
		})
	}
}

// flags lists --set flags of helm, and the flags of the operator that they add and remove.
var flags = []struct {
	reason  string
	set     []string
	adds    []string
	without []string
}{
	{"the default", nil, nil, nil},
	{"no metrics", []string{"metrics.enabled=false"}, []string{"--metrics-bind-address=0"}, []string{"--metrics-bind-address=:8443"}},
	{"another port", []string{"metrics.port=9090"}, []string{"--metrics-bind-address=:9090"}, []string{"--metrics-bind-address=:8443"}},
	{"a dry run", []string{"schedule.dryRun=true"}, []string{"--schedule-dry-run"}, nil},
	{
		"a value can contain quotes and colons",
		[]string{"controllers.ingress.enabled=true", `ingress.annotations.example\.com/a=x: "y"`, "ingress.classes={nginx}", "ingress.annotationPolicy=IfNotPresent"},
		[]string{
			"--controllers=ingress", `--ingress-annotation=example.com/a=x: "y"`, "--ingress-annotation-policy=IfNotPresent", "--ingress-class=nginx",
		}, nil,
	},
	{"more flags", []string{"extraArgs={--max-switches=50}"}, []string{"--max-switches=50"}, nil},
	{
		"only one kind", []string{"schedule.kinds={cronjobs}", "controllers.machine.enabled=false"}, nil,
		[]string{
			"--controllers=machine", "--schedule-kinds=deployments", "--schedule-kinds=horizontalpodautoscalers",
			"--schedule-kinds=scaledobjects", "--schedule-kinds=statefulsets", "--schedule-kinds=virtualmachines",
		},
	},
	{"the user's certificate", secretMode, nil, []string{"--self-managed-certs"}},
}

// TestFlags checks the operator's flags for each entry of the table above. The operator itself must accept the flags.
func TestFlags(t *testing.T) {
	manager, err := executable.BuildManager()
	if err != nil {
		t.Fatal(err)
	}
	defaults := argsOf(t, rendered(t))
	for _, c := range flags {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			args := argsOf(t, rendered(t, c.set...))
			want := slices.DeleteFunc(slices.Concat(defaults, c.adds), func(arg string) bool { return slices.Contains(c.without, arg) })
			if diff := gocmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(args))); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
			command := exec.CommandContext(t.Context(), manager, append(args, "--version")...)
			command.Env = []string{"USELESS_NAMESPACE=" + namespace}
			if _, err := executable.Output(command); err != nil {
				t.Errorf("the operator rejects the flags: %v", err)
			}
		})
	}
}

// TestServeV1alpha1 checks that crds.serveV1alpha1=false disables v1alpha1 of Machines and Switches, and no other
// version.
func TestServeV1alpha1(t *testing.T) {
	const group = "useless.container.training"
	served := map[string]any{}
	for _, object := range rendered(t, "crds.serveV1alpha1=false") {
		versions, _, _ := unstructured.NestedSlice(object.Object, "spec", "versions")
		for _, version := range versions {
			version := version.(map[string]any)
			served[fmt.Sprint(object.GetName(), " ", version["name"])] = version["served"]
		}
	}
	want := map[string]any{
		"machines." + group + " v1alpha1": false, "machines." + group + " v1beta1": true,
		"switches." + group + " v1alpha1": false, "switches." + group + " v1beta1": true,
		"virtualmachines.cloudnative.tw v1alpha1": true,
	}
	if diff := gocmp.Diff(want, served); diff != "" {
		t.Errorf("served versions (-want +got):\n%s", diff)
	}
}

// TestPod checks the values that change the Pods.
func TestPod(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		set   string
		field string // in the spec of the Pod, or in the container
		want  any
	}{
		{"image.repository=registry.example.com:5000/useless", "image", "registry.example.com:5000/useless:v0.1.0"},
		{"image.tag=v9", "image", "container.training/useless-operator:v9"},
		{"image.digest=" + digest, "image", "container.training/useless-operator@" + digest},
		{"image.pullPolicy=Always", "imagePullPolicy", "Always"},
		{"imagePullSecrets[0].name=registry", "imagePullSecrets", []any{map[string]any{"name": "registry"}}},
		{"goMemLimit=off", "env", []any{ // YAML reads an unquoted off as false
			map[string]any{"name": "USELESS_NAMESPACE", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.namespace"}}},
			map[string]any{"name": "USELESS_POD_UID", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.uid"}}},
			map[string]any{"name": "GOMEMLIMIT", "value": "off"},
		}},
		{"priorityClassName=high", "priorityClassName", "high"},
		{"nodeSelector.disk=ssd", "nodeSelector", map[string]any{"disk": "ssd"}},
		{"tolerations[0].operator=Exists", "tolerations", []any{map[string]any{"operator": "Exists"}}},
		{"affinity.nodeAffinity.foo=bar", "affinity", map[string]any{"nodeAffinity": map[string]any{"foo": "bar"}}},
		{"topologySpreadConstraints=null", "topologySpreadConstraints", nil},
		{"resources.limits=null", "resources", map[string]any{"requests": map[string]any{"cpu": "20m", "memory": "64Mi"}}},
	} {
		t.Run(c.set, func(t *testing.T) {
			t.Parallel()
			objects := rendered(t, c.set)
			fields := maps.Clone(podSpec(t, objects))
			maps.Copy(fields, container(t, objects))
			if diff := gocmp.Diff(c.want, fields[c.field]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.field, diff)
			}
		})
	}
}

// TestAdditions checks the values that add labels or annotations. The chart's own labels and annotations must remain.
func TestAdditions(t *testing.T) {
	const deployment = "Deployment useless-controller-manager"
	for _, c := range []struct {
		value, enable string // enable sets the value without which the object does not exist
		object        string
		field         []string
	}{
		{"podLabels", "", deployment, []string{"spec", "template", "metadata", "labels"}},
		{"podAnnotations", "", deployment, []string{"spec", "template", "metadata", "annotations"}},
		{"metrics.serviceMonitor.labels", "metrics.serviceMonitor.enabled=true",
			"ServiceMonitor useless-controller-manager", []string{"metadata", "labels"}},
		{"metrics.rules.labels", "metrics.rules.enabled=true",
			"PrometheusRule useless-controller-manager", []string{"metadata", "labels"}},
		{"dashboards.labels", "dashboards.enabled=true", "ConfigMap useless-dashboard", []string{"metadata", "labels"}},
	} {
		t.Run(c.value, func(t *testing.T) {
			t.Parallel()
			added := func(set ...string) map[string]string {
				object := rendered(t, append(set, strings.Fields(c.enable)...)...)[c.object]
				if object == nil {
					t.Fatalf("there is no %s", c.object)
				}
				got, found, err := unstructured.NestedStringMap(object.Object, c.field...)
				if err != nil || !found {
					t.Fatalf("%s: %v", c.field, err)
				}
				return got
			}
			want := added()
			if len(want) == 0 {
				t.Errorf("the chart has no %s", c.field)
			}
			want["team"] = "useless"
			if diff := gocmp.Diff(want, added(c.value+".team=useless")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.field, diff)
			}
		})
	}
}

// TestExtraEnv adds an environment variable.
func TestExtraEnv(t *testing.T) {
	t.Parallel()
	want := append(container(t, rendered(t))["env"].([]any), map[string]any{"name": "HTTPS_PROXY", "value": "proxy"})
	got := container(t, rendered(t, "extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=proxy"))["env"]
	if diff := gocmp.Diff(any(want), got); diff != "" {
		t.Errorf("environment variables (-want +got):\n%s", diff)
	}
}

// TestExamples runs helm lint with each file in ci, as make helm-lint does. The README of the chart contains these
// files.
func TestExamples(t *testing.T) {
	examples, err := filepath.Glob(installer.Chart + "/ci/*-values.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("found the examples %v, error %v", examples, err)
	}
	for _, example := range examples {
		t.Run(filepath.Base(example), func(t *testing.T) {
			t.Parallel()
			lint := installer.Helm(t, "", "lint", "--strict", "--values", example, installer.Chart)
			if out, err := executable.Output(lint); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func argsOf(t *testing.T, objects map[string]*unstructured.Unstructured) (args []string) {
	t.Helper()
	for _, arg := range container(t, objects)["args"].([]any) {
		args = append(args, arg.(string))
	}
	return args
}
