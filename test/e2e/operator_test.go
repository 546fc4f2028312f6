// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	oldMachines = "machines.v1alpha1.useless.container.training"
	newMachines = "machines.v1beta1.useless.container.training"
	oldSwitches = "switches.v1alpha1.useless.container.training"
)

// checkOperator runs the checks that do not depend on the installation method. Each check has its own namespaces and
// mostly waits, so the checks run in parallel.
func checkOperator(t *testing.T, namespace string) {
	t.Helper()
	t.Run("operator", func(t *testing.T) {
		t.Run("versions", func(t *testing.T) { t.Parallel(); checkVersions(t) })
		t.Run("flip", func(t *testing.T) { t.Parallel(); checkFlip(t) })
		t.Run("admission", func(t *testing.T) { t.Parallel(); checkAdmission(t) })
		t.Run("virtual machine", func(t *testing.T) { t.Parallel(); checkVirtualMachine(t) })
		t.Run("schedule", func(t *testing.T) { t.Parallel(); checkSchedule(t) })
		t.Run("metrics", func(t *testing.T) { t.Parallel(); checkMetrics(t, namespace) })
		t.Run("prometheus", func(t *testing.T) { t.Parallel(); checkPrometheus(t, namespace) })
		t.Run("pods", func(t *testing.T) { t.Parallel(); checkPods(t, namespace) })
	})
}

// newNamespace creates a namespace with a unique name, so that a test need not wait until an earlier namespace is
// deleted.
func newNamespace(t *testing.T, purpose string) string {
	t.Helper()
	name := fmt.Sprintf("%s-%x", purpose, time.Now().UnixMilli()%0xffffff)
	must(t, "kubectl", "create", "namespace", name)
	t.Cleanup(func() { cleanUp(t, "namespace", name, "--wait=false") })
	return name
}

// The same machine in both versions, with every field.
const (
	oldMachine = `
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata: {name: machine}
spec:
  switches: 2
  switchPosition: down
  selector: {matchLabels: {machine: machine}}
  template: {metadata: {labels: {room: lab}, annotations: {example.com/made-by: hand}}}
  flipDelaySeconds: 3
  flipIntervalSeconds: 1
`
	newMachine = `
apiVersion: useless.container.training/v1beta1
kind: Machine
metadata: {name: machine}
spec:
  switches:
    count: 2
    selector: {matchLabels: {machine: machine}}
    template: {metadata: {labels: {room: lab}, annotations: {example.com/made-by: hand}}}
  position: down
  flip: {delaySeconds: 3, intervalSeconds: 1}
`
)

// named renames the machine in a manifest.
func named(manifest, name string) string {
	return strings.NewReplacer("name: machine", "name: "+name, "machine: machine", "machine: "+name).Replace(manifest)
}

// checkVersions writes a machine in each version and reads it in the other version.
func checkVersions(t *testing.T) {
	t.Helper()
	for _, direction := range []struct{ name, write, read, want string }{
		{"up", oldMachine, newMachines, newMachine},
		{"down", newMachine, oldMachines, oldMachine},
	} {
		namespace := newNamespace(t, direction.name)
		mustRead(t, direction.write, "kubectl", "create", "-n", namespace, "-f", "-")
		must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine/machine", "--timeout=30s")
		got := get[unstructured.Unstructured](t, "-n", namespace, direction.read, "machine")
		if diff := cmp.Diff(parse(t, direction.want).Object["spec"], got.Object["spec"]); diff != "" {
			t.Errorf("read as %s (-want +got):\n%s", direction.read, diff)
		}
		checkColumns(t, namespace)
	}
	output := mustRead(t, oldMachine, "kubectl", "create", "--dry-run=server", "-f", "-")
	if want := "v1alpha1 Machine is deprecated; use useless.container.training/v1beta1 Machine"; !strings.Contains(output, want) {
		t.Errorf("a machine in v1alpha1 was created without %q:\n%s", want, output)
	}
}

func parse(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// checkColumns compares the output of kubectl get with the documented columns.
func checkColumns(t *testing.T, namespace string) {
	t.Helper()
	for _, table := range []struct{ resource, name, want string }{
		{newMachines, "machine", `NAME +SWITCHES +POSITIONS +READY +AGE\s+machine +2 +dd +True +\d+s`},
		{oldMachines, "machine", `NAME +SWITCHES +POSITIONS\s+machine +2 +dd`},
		{"switches", "machine-0", `NAME +MACHINE +POSITION +SEEN +AGE\s+machine-0 +machine +down +\d+s`},
		{oldSwitches, "machine-0", `NAME +POSITION +SEEN\s+machine-0 +down`},
	} {
		output := stdout(t, "kubectl", "get", "-n", namespace, table.resource, table.name)
		if !regexp.MustCompile(`(?m)^` + table.want + `\s*$`).MatchString(output) {
			t.Errorf("want %s, got:\n%s", table.want, output)
		}
	}
}

// checkFlip turns a switch up and waits until it is down.
func checkFlip(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "flip")
	checkInvariants(t, namespace)
	mustRead(t, newMachine, "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	start := time.Now()
	must(t, "kubectl", "patch", "-n", namespace, "switch", "machine-0", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
	must(t, "kubectl", "wait", "-n", namespace, "--for=jsonpath={.spec.position}=down", "switch/machine-0", "--timeout=30s")
	if took := time.Since(start); took < 3*time.Second {
		t.Errorf("the switch was down after %s, want at least 3s", took)
	}
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Resting", "machine/machine", "--timeout=30s")
	checkEvents(t, namespace, "machine/machine", `Normal +Scaled`, `Normal +Flipped`)
	must(t, "kubectl", "delete", "-n", namespace, "machine", "machine", "--timeout=30s")
	eventually(t, 30*time.Second, func() string {
		left := get[unstructured.UnstructuredList](t, "-n", namespace, "switches").Items
		if len(left) > 0 {
			return fmt.Sprintf("%d switches remain", len(left))
		}
		return ""
	})
}

// checkEvents waits for events, because the operator writes them asynchronously.
func checkEvents(t *testing.T, namespace, object string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		eventually(t, 30*time.Second, func() string {
			events := must(t, "kubectl", "events", "-n", namespace, "--for="+object)
			if !regexp.MustCompile(want).MatchString(events) {
				return fmt.Sprintf("no event %s in:\n%s", want, events)
			}
			return ""
		})
	}
}

// checkAdmission requests more switches than the limit, with each kind of request.
func checkAdmission(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "admission")
	mustRead(t, newMachine, "kubectl", "create", "-n", namespace, "-f", "-")
	for _, request := range []struct {
		reason  string
		stdin   string
		command []string
	}{{
		reason:  "create in v1beta1",
		stdin:   strings.NewReplacer("count: 2", "count: 101", "name: machine", "name: many").Replace(newMachine),
		command: []string{"kubectl", "create", "-n", namespace, "-f", "-"},
	}, {
		reason:  "create in v1alpha1",
		stdin:   strings.NewReplacer("switches: 2", "switches: 101").Replace(oldMachine),
		command: []string{"kubectl", "create", "-n", namespace, "-f", "-"},
	}, {
		reason:  "update",
		command: []string{"kubectl", "patch", "-n", namespace, "machine", "machine", "--type=merge", "-p", `{"spec":{"switches":{"count":101}}}`},
	}, {
		reason:  "scale subresource",
		command: []string{"kubectl", "scale", "-n", namespace, "machine/machine", "--replicas=101"},
	}} {
		output, err := try(t, request.stdin, request.command...)
		if err == nil || !strings.Contains(output, "101") || !strings.Contains(output, "must be at most 100") {
			t.Errorf("%s: got error %v, want an error that names 101 and the limit of 100:\n%s", request.reason, err, output)
		}
	}
}

// checkMetrics requests metrics without a token, with a token without permission, and with a token with permission.
// Like Prometheus with the ServiceMonitor, it verifies the certificate of the operator.
func checkMetrics(t *testing.T, namespace string) {
	t.Helper()
	user := newNamespace(t, "metrics")
	must(t, "kubectl", "create", "serviceaccount", "-n", user, "unauthorized")
	address := forward(t, namespace, "service/useless-controller-manager-metrics-service", 8443)
	monitor, ca := metricsMonitor(t, namespace)
	verification := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: monitor.Spec.Endpoints[0].TLSConfig.ServerName}
	verification.RootCAs.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: verification}}
	scrape := func(token string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	unauthorized := strings.TrimSpace(must(t, "kubectl", "create", "token", "-n", user, "unauthorized"))
	for _, request := range []struct {
		reason string
		token  string
		want   int
	}{
		{"no token", "", http.StatusUnauthorized},
		{"token without permission", unauthorized, http.StatusForbidden},
		{"token with permission", metricsToken(t, user), http.StatusOK},
	} {
		status, body := scrape(request.token)
		if status != request.want {
			t.Errorf("%s: got %d, want %d", request.reason, status, request.want)
		}
		if status == http.StatusOK && !strings.Contains(body, "useless_machines{") {
			t.Errorf("%s: no useless_machines in:\n%s", request.reason, body)
		}
	}
}

// forward starts kubectl port-forward and returns the local address.
func forward(t *testing.T, namespace, target string, port int) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "kubectl", "port-forward", "-n", namespace, target, fmt.Sprintf(":%d", port))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, 256)
	n, err := stdout.Read(line)
	match := regexp.MustCompile(`127\.0\.0\.1:\d+`).Find(line[:n])
	if match == nil {
		t.Fatalf("%s printed no local address: %q, %v", cmd, line[:n], err)
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }()
	return string(match)
}

// checkPods checks the operator's Deployment and the security of its Pods.
func checkPods(t *testing.T, namespace string) {
	t.Helper()
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/useless-controller-manager", "--timeout=2m")
	deployment := get[appsv1.Deployment](t, "-n", namespace, "deployment", "useless-controller-manager")
	if status := deployment.Status; status.ReadyReplicas != 2 || status.UpdatedReplicas != 2 {
		t.Errorf("want two replicas, got %+v", status)
	}
	// In this namespace, the API server warns about a Pod that violates the profile restricted.
	restricted := newNamespace(t, "restricted")
	must(t, "kubectl", "label", "namespace", restricted, "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
	if output := mustRead(t, podOf(t, &deployment), "kubectl", "create", "-n", restricted, "--dry-run=server", "-f", "-"); strings.Contains(output, "Warning") {
		t.Errorf("the profile restricted warns:\n%s", output)
	}
	for _, pod := range operatorPods(t, namespace) {
		checkPod(t, &pod)
	}
}

// operatorPods waits until only two Pods of the operator exist, and returns them.
func operatorPods(t *testing.T, namespace string) (pods []corev1.Pod) {
	t.Helper()
	eventually(t, time.Minute, func() string {
		pods = get[corev1.PodList](t, "-n", namespace, "pods", "-l", "app.kubernetes.io/name=useless-operator").Items
		if len(pods) != 2 {
			return fmt.Sprintf("want 2 Pods of the operator, got %d", len(pods))
		}
		return ""
	})
	return pods
}

// podOf returns the manifest of a Pod with the Pod template of a Deployment.
func podOf(t *testing.T, deployment *appsv1.Deployment) string {
	t.Helper()
	pod := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		Spec:       deployment.Spec.Template.Spec,
	}
	pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = "default", ""
	manifest, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return string(manifest)
}

func checkPod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, status := range pod.Status.ContainerStatuses {
		if status.User == nil || status.User.Linux == nil || status.User.Linux.UID != 65532 || status.User.Linux.GID != 65532 {
			t.Errorf("%s runs as %+v, want 65532:65532", pod.Name, status.User)
		}
		if status.RestartCount > 0 {
			t.Errorf("%s restarted %d times: %+v", pod.Name, status.RestartCount, status.LastTerminationState)
		}
	}
	for _, container := range pod.Spec.Containers {
		if readOnly := container.SecurityContext.ReadOnlyRootFilesystem; readOnly == nil || !*readOnly {
			t.Errorf("%s has a writable root file system", pod.Name)
		}
	}
}
