// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/hack/cluster/standin"
)

// TestVirtualMachineUsage serves a simulated metrics API. The API server forwards requests for metrics.k8s.io to it.
func TestVirtualMachineUsage(t *testing.T) {
	useExclusiveCluster(t)
	runOperatorFor(t, operatorOptions{usageInterval: time.Second})
	namespace := newNamespace(t)
	vm := waitForActive(t, createVirtualMachine(t, namespace, "test-vm", standin.Fate{}))
	waitForActive(t, createVirtualMachine(t, namespace, "other", standin.Fate{}))
	waitForCondition(t, vm, v1alpha1.ConditionUsageAvailable, metav1.ConditionUnknown, v1alpha1.ReasonMetricsAPIUnavailable)

	api := serveMetrics(t, namespace)
	waitForCondition(t, vm, v1alpha1.ConditionUsageAvailable, metav1.ConditionUnknown, v1alpha1.ReasonNotMeasured)
	api.set("test-vm-vm", "500m", "1G")
	waitForUsage(t, vm, v1alpha1.UsageStatus{CPU: 25, Memory: 25})
	got := strings.Fields(mustKubectl(t, "", "get", "vm", "test-vm", "-n", namespace, "--no-headers"))
	if diff := cmp.Diff([]string{"test-vm", "Active", "25", "25"}, got[:len(got)-1]); diff != "" {
		t.Errorf("kubectl get vm (-want +got):\n%s", diff)
	}

	steady := getVirtualMachine(t, namespace, "test-vm")
	api.set("test-vm-vm", "501m", "1001M") // rounds to the same percentages
	api.waitForRequests(t, 3)
	if diff := cmp.Diff(steady, getVirtualMachine(t, namespace, "test-vm")); diff != "" {
		t.Errorf("the operator wrote an unchanged usage (-before +after):\n%s", diff)
	}

	api.set("test-vm-vm", "0", "2G")
	waitForUsage(t, vm, v1alpha1.UsageStatus{CPU: 0, Memory: 50})
	setAction(t, vm, v1alpha1.ActionInactive)
	stopped := waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
	if stopped.Status.Server != nil {
		t.Errorf("the stopped virtual machine has status.server %+v", stopped.Status.Server)
	}
	setAction(t, vm, v1alpha1.ActionActive)
	waitForActive(t, vm)
	waitForUsage(t, vm, v1alpha1.UsageStatus{CPU: 0, Memory: 50})

	api.breakDown()
	vm = waitForCondition(t, vm, v1alpha1.ConditionUsageAvailable, metav1.ConditionUnknown, v1alpha1.ReasonMetricsAPIUnavailable)
	if vm.Status.Phase != v1alpha1.PhaseActive || vm.Status.Server.Usage != nil {
		t.Errorf("without a metrics API the status is %+v", vm.Status)
	}
}

func waitForUsage(t *testing.T, vm *v1alpha1.VirtualMachine, want v1alpha1.UsageStatus) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		status := getVirtualMachine(t, vm.Namespace, vm.Name).Status
		known := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionUsageAvailable)
		return known && status.Server != nil && status.Server.Usage != nil && *status.Server.Usage == want, fmt.Sprintf("the status is %+v", status)
	})
}

// A metricsAPI serves metrics.k8s.io. It replaces metrics-server, which would need real nodes.
type metricsAPI struct {
	namespace string

	mu       sync.Mutex
	usage    map[string]corev1.ResourceList // by Pod
	broken   bool
	requests int // the number of list requests
}

// serveMetrics serves a metrics API until the test ends.
func serveMetrics(t *testing.T, namespace string) *metricsAPI {
	t.Helper()
	api := &metricsAPI{namespace: namespace, usage: map[string]corev1.ResourceList{}}
	server := httptest.NewTLSServer(api)
	t.Cleanup(server.Close)
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// Endpoints must not have loopback addresses, but a Service of type ExternalName may point to localhost.
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "metrics"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	if err := admin(t).Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	apiService := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1",
		"kind":       "APIService",
		"metadata":   map[string]any{"name": "v1beta1.metrics.k8s.io"},
		"spec": map[string]any{
			"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true,
			"service":               map[string]any{"namespace": namespace, "name": "metrics", "port": port},
		},
	}}
	if err := admin(t).Create(t.Context(), apiService); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin(t).Delete(context.Background(), apiService); err != nil {
			t.Error(err)
		}
	})
	return api
}

// ServeHTTP implements http.Handler.
func (a *metricsAPI) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	root := "/apis/" + metricsv1beta1.SchemeGroupVersion.String()
	var answer any
	switch {
	case a.broken:
		http.Error(w, "broken", http.StatusServiceUnavailable)
		return
	case request.URL.Path == root:
		answer = metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
			GroupVersion: metricsv1beta1.SchemeGroupVersion.String(),
			APIResources: []metav1.APIResource{{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: []string{"get", "list"}}},
		}
	case request.URL.Path == root+"/pods" && request.URL.Query().Get("labelSelector") == v1alpha1.VirtualMachineLabel:
		a.requests++
		answer = a.list()
	default: // the operator requests only the Pods with this label
		http.NotFound(w, request)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *metricsAPI) list() metricsv1beta1.PodMetricsList {
	list := metricsv1beta1.PodMetricsList{TypeMeta: metav1.TypeMeta{APIVersion: metricsv1beta1.SchemeGroupVersion.String(), Kind: "PodMetricsList"}}
	for name, usage := range a.usage {
		list.Items = append(list.Items, metricsv1beta1.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: name},
			Timestamp:  metav1.Now(),
			Window:     metav1.Duration{Duration: 15 * time.Second},
			Containers: []metricsv1beta1.ContainerMetrics{{Name: "server", Usage: usage}},
		})
	}
	return list
}

func (a *metricsAPI) set(pod, cpu, memory string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.usage[pod] = corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(cpu), corev1.ResourceMemory: apiresource.MustParse(memory)}
}

func (a *metricsAPI) breakDown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.broken = true
}

// waitForRequests waits until the operator has sent the given number of further requests.
func (a *metricsAPI) waitForRequests(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.requests
	}
	from := count()
	eventually(t, defaultTimeout, func() (bool, string) {
		return count() >= from+more, "the operator sends no requests to the metrics API"
	})
}
