// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/hack/cluster"
	"container.training/useless/test/internal/executable"
)

const (
	namespace = "operators" // OLM's default namespace for operators
	patience  = 2 * time.Minute
)

// TestOnAPIServer installs the bundle as OLM does, but runs no Pods. It runs the operator as a process, with the
// arguments and the permissions in the ClusterServiceVersion.
func TestOnAPIServer(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	bundle := load(t)
	dir := t.TempDir()
	ca, err := cluster.ServingCert(dir)
	if err != nil {
		t.Fatal(err)
	}
	webhooks, metrics, probes := freePort(t), freePort(t), freePort(t)
	server := cluster.WebhookServer{URL: fmt.Sprintf("https://127.0.0.1:%d", webhooks), CA: ca}
	plane := start(t, cluster.Options{Disposable: true, BeforeControllers: func(ctx context.Context, config *rest.Config) error {
		return cluster.Install(ctx, config, objects(t, bundle), server)
	}})
	install(t, plane, bundle)

	kubeconfig, err := plane.ServiceAccountKubeconfig(t.Context(), namespace, serviceAccount)
	if err != nil {
		t.Fatal(err)
	}
	args := slices.DeleteFunc(slices.Clone(deployment(t, bundle).Spec.Template.Spec.Containers[0].Args), func(arg string) bool {
		return strings.Contains(arg, "-bind-address=") || strings.HasPrefix(arg, "--webhook-cert-dir=") // set below
	})
	operator := startOperator(t, dir, append(args,
		"--kubeconfig="+kubeconfig, "--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", webhooks), "--webhook-cert-dir="+dir,
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", metrics), "--metrics-secure=false",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", probes))...)
	eventually(t, func(ctx context.Context) error {
		_, err := get(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", probes))
		return err
	})

	t.Run("Examples", func(t *testing.T) { testExamples(t, plane, bundle) })
	t.Run("Alerts", func(t *testing.T) { testAlerts(t, plane, fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics)) })
	if text := operator.Log(); strings.Contains(strings.ToLower(text), "forbidden") {
		t.Errorf("the operator lacks permissions:\n%s", text)
	}
	// Run this test last. While a CRD is being deleted, the API server answers Forbidden to creations.
	t.Run("Cleanup", func(t *testing.T) { testCleanup(t, plane, bundle) })
}

// testExamples creates all examples, and then waits until the operator has reconciled all of them.
func testExamples(t *testing.T, plane *cluster.ControlPlane, bundle *manifests.Bundle) {
	var examples []*unstructured.Unstructured
	if err := json.Unmarshal([]byte(bundle.CSV.Annotations["alm-examples"]), &examples); err != nil {
		t.Fatal(err)
	}
	warnings := &recorder{}
	admin := newClient(t, plane, warnings)
	for _, example := range examples {
		example.SetNamespace(metav1.NamespaceDefault)
		if err := admin.Create(t.Context(), example, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
			t.Errorf("%s %s: %v", example.GroupVersionKind(), example.GetName(), err)
		}
	}
	for _, warning := range *warnings {
		if !strings.Contains(warning, "v1alpha1 Machine is deprecated") && !strings.Contains(warning, "v1alpha1 Switch is deprecated") {
			t.Errorf("an example causes the warning %q", warning)
		}
	}
	for _, example := range examples {
		eventually(t, func(ctx context.Context) error {
			if err := admin.Get(ctx, client.ObjectKeyFromObject(example), example); err != nil {
				return err
			}
			return missing(example)
		})
	}
}

// missing returns an error if the operator has not reconciled an example yet.
func missing(example *unstructured.Unstructured) error {
	switch example.GetKind() {
	case "Switch":
		if metav1.GetControllerOf(example) == nil {
			return fmt.Errorf("no Machine has adopted %s", example.GetName())
		}
	case "Machine":
		if total, _, _ := unstructured.NestedInt64(example.Object, "status", "switches", "total"); total != 3 {
			return fmt.Errorf("%s has %d switches", example.GetName(), total)
		}
	case "VirtualMachine": // its Pod stays pending, because the control plane has no node
		if phase, _, _ := unstructured.NestedString(example.Object, "status", "phase"); phase != "Creating" {
			return fmt.Errorf("%s is in phase %q", example.GetName(), phase)
		}
	}
	return nil
}

// testAlerts checks that the operator has all metrics that the alerts use. One of them exists only if a workload has a
// schedule.
func testAlerts(t *testing.T, plane *cluster.ControlPlane, url string) {
	scheduled := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "CronJob",
		"metadata": map[string]any{
			"namespace": metav1.NamespaceDefault, "name": "scheduled",
			"annotations": map[string]any{"useless.container.training/stop-schedule": "20:00"},
		},
		"spec": map[string]any{
			"schedule": "@yearly",
			"jobTemplate": map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
				"restartPolicy": "Never", "containers": []any{map[string]any{"name": "main", "image": "example.com/image"}},
			}}}},
		},
	}}
	if err := newClient(t, plane, rest.NoWarnings{}).Create(t.Context(), scheduled); err != nil {
		t.Fatal(err)
	}
	var exposed string
	eventually(t, func(ctx context.Context) (err error) {
		if exposed, err = get(ctx, url); err != nil {
			return err
		}
		for _, name := range []string{"leader_election_master_status", "useless_schedule_workloads"} {
			if !strings.Contains(exposed, name) {
				return fmt.Errorf("no metric %s yet", name)
			}
		}
		return nil
	})
	names := map[string]bool{}
	rule := text(t, "../../config/prometheus/prometheus_rule.yaml")
	for _, name := range regexp.MustCompile(`\b(useless|controller_runtime|leader_election)_\w+`).FindAllString(rule, -1) {
		names[name] = true
	}
	if len(names) == 0 {
		t.Error("no alert uses a metric")
	}
	for name := range maps.Keys(names) {
		if !regexp.MustCompile(`(?m)^` + name + `\b`).MatchString(exposed) {
			t.Errorf("the operator has no metric %s", name)
		}
	}
}

// testCleanup deletes the CRDs while objects exist and the operator runs, as operator-sdk cleanup does.
func testCleanup(t *testing.T, plane *cluster.ControlPlane, bundle *manifests.Bundle) {
	admin := newClient(t, plane, rest.NoWarnings{})
	crds := slices.DeleteFunc(slices.Clone(bundle.Objects), func(object *unstructured.Unstructured) bool {
		return object.GetKind() != "CustomResourceDefinition"
	})
	for _, crd := range crds {
		if err := admin.Delete(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
	}
	for _, crd := range crds {
		eventually(t, func(ctx context.Context) error {
			err := admin.Get(ctx, client.ObjectKeyFromObject(crd), crd.DeepCopy())
			if err == nil {
				return fmt.Errorf("%s still exists", crd.GetName())
			}
			return client.IgnoreNotFound(err)
		})
	}
	var pods corev1.PodList
	if err := admin.List(t.Context(), &pods, client.HasLabels{v1alpha1.VirtualMachineLabel}); err != nil || len(pods.Items) > 0 {
		t.Errorf("%d Pods of VirtualMachines remain, error %v", len(pods.Items), err)
	}
}

// objects returns the bundle's objects without the ClusterServiceVersion, and the webhook configuration that OLM
// generates.
func objects(t *testing.T, bundle *manifests.Bundle) []*unstructured.Unstructured {
	t.Helper()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: "olm"},
	}
	for _, webhook := range bundle.CSV.Spec.WebhookDefinitions {
		if webhook.Type == operatorsv1alpha1.ValidatingAdmissionWebhook {
			configuration.Webhooks = append(configuration.Webhooks, webhook.GetValidatingWebhook(namespace, nil, nil))
		}
	}
	typed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(configuration)
	if err != nil {
		t.Fatal(err)
	}
	all := []*unstructured.Unstructured{{Object: typed}}
	for _, object := range bundle.Objects {
		if object.GetKind() != "ClusterServiceVersion" { // its API is not installed
			all = append(all, object)
		}
	}
	return all
}

// install creates the objects that OLM generates from the ClusterServiceVersion. The namespace enforces the Pod
// Security profile restricted.
func install(t *testing.T, plane *cluster.ControlPlane, bundle *manifests.Bundle) {
	t.Helper()
	strategy, deployment := bundle.CSV.Spec.InstallStrategy.StrategySpec, deployment(t, bundle)
	meta := metav1.ObjectMeta{Namespace: namespace, Name: serviceAccount}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: serviceAccount}}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: serviceAccount}
	}
	warnings := &recorder{}
	admin := newClient(t, plane, warnings)
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
		}}},
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: strategy.ClusterPermissions[0].Rules},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref("ClusterRole"), Subjects: subjects},
		&rbacv1.Role{ObjectMeta: meta, Rules: strategy.Permissions[0].Rules},
		&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref("Role"), Subjects: subjects},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: deployment.Name}, Spec: deployment.Spec},
	} {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	if len(*warnings) > 0 {
		t.Errorf("the installation causes the warnings %q", *warnings)
	}
}

func start(t *testing.T, options cluster.Options) *cluster.ControlPlane {
	t.Helper()
	programs, err := cluster.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	plane, err := cluster.Start(t.Context(), programs, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	return plane
}

func startOperator(t *testing.T, dir string, args ...string) *cluster.Process {
	t.Helper()
	path, err := executable.BuildManager()
	if err != nil {
		t.Fatal(err)
	}
	operator, err := cluster.StartProcess(cluster.Command{
		Name: "useless-operator", Path: path, Args: args, Env: []string{"USELESS_NAMESPACE=" + namespace}, Log: filepath.Join(dir, "operator.log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		operator.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("the end of the operator's log:\n%s", operator.Log())
		}
	})
	return operator
}

// A recorder collects the API server's warnings.
type recorder []string

// HandleWarningHeader implements rest.WarningHandler.
func (r *recorder) HandleWarningHeader(_ int, _, text string) { *r = append(*r, text) }

func newClient(t *testing.T, plane *cluster.ControlPlane, warnings rest.WarningHandler) client.Client {
	t.Helper()
	config := rest.CopyConfig(plane.Config)
	config.WarningHandler = warnings
	c, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func get(ctx context.Context, url string) (body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// eventually repeats a check until it returns nil.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	var problem error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		problem = check(ctx)
		return problem == nil, nil
	})
	if err != nil {
		t.Fatalf("timed out after %s: %v", patience, problem)
	}
}
