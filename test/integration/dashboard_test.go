// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/test/internal/prometheus"
	"container.training/useless/test/internal/slowclient"
)

// A cause is an action. It gives panels of the dashboard a value above zero, or makes alerts fire.
type cause struct {
	reason string
	do     func(t *testing.T, namespace string, prom *prometheus.Server) // nil if the running operator is enough
	panels []string
	alerts map[string]alertLabels // names of the alerts that must fire, and labels that each alert must have
}

// alertLabels are the names and values of some labels.
type alertLabels = map[string]string

// causes lists all causes. Each panel of the dashboard belongs to exactly one cause.
var causes = []cause{
	{
		reason: "the operator runs and leads",
		panels: []string{
			"Replicas", "Leaders", "Leader by Pod", "CPU", "Memory", "Requests to the API server", "Storage version migration",
			"Certificate",
		},
	},
	{
		reason: "100 switches flip at once, and their events exceed the event limit of the namespace",
		do:     causeFlips,
		panels: []string{
			"Flips", "Lateness of flips", "Machines by condition", "Dropped events", "Reconciles", "Duration of reconciles",
			"Wait in the work queue",
		},
	},
	{
		reason: "a webhook delays writes to more ReplicaSets than there are workers",
		do:     causeWait,
		panels: []string{"Work queue", "Busy workers"},
	},
	{
		reason: "a user creates a Machine, and a client sends a request that is not a review",
		do:     causeWebhookErrors,
		panels: []string{"Webhook requests", "Webhook errors", "Latency of webhooks"},
	},
	{
		reason: "a quota rejects the creation of switches",
		do:     causeQuotaErrors,
		panels: []string{"Reconcile errors"},
		alerts: map[string]alertLabels{"UselessMachinesNotScaled": {"namespace": operatorNamespace}},
	},
	{
		reason: "the webhook cannot read the bodies of requests",
		do: func(t *testing.T, _ string, prom *prometheus.Server) {
			t.Helper()
			blockWebhook(t) // creates the counter; a rate needs an increase after the first scrape
			waitForSeries(t, prom, `controller_runtime_webhook_requests_total{code="503"} > 0`)
			blockWebhook(t)
		},
		alerts: map[string]alertLabels{
			"UselessWebhookFails": {"webhook": slowclient.Webhook},
			"UselessWebhookSlow":  {"webhook": slowclient.Webhook},
		},
	},
	{
		reason: "a user writes an invalid schedule",
		do: func(t *testing.T, namespace string, _ *prometheus.Server) {
			t.Helper()
			createInvalidSchedule(t, namespace)
		},
		alerts: map[string]alertLabels{"UselessScheduleInvalid": {"kind": "deployments"}},
	},
	{
		reason: "a user scales a stopped Deployment",
		do:     func(t *testing.T, namespace string, _ *prometheus.Server) { t.Helper(); testOverridden(t, namespace) },
		alerts: map[string]alertLabels{"UselessScheduleOverridden": {"kind": "deployments"}},
	},
	{
		reason: "the API server rejects a stop",
		do:     func(t *testing.T, namespace string, _ *prometheus.Server) { t.Helper(); testScaleRefused(t, namespace) },
		alerts: map[string]alertLabels{
			"UselessScheduleFails": {"kind": "deployments"},
			"UselessOperatorFails": {"controller": "schedule-deployments"},
		},
	},
	{
		reason: "a Pod has the name that a VirtualMachine needs",
		do:     func(t *testing.T, namespace string, _ *prometheus.Server) { t.Helper(); createConflict(t, namespace) },
		alerts: map[string]alertLabels{"UselessVirtualMachineFailed": {"namespace": operatorNamespace}},
	},
	{
		reason: "a schedule stops a Deployment, and a user changes the recorded time of the stop",
		do:     causeStops,
		panels: []string{
			"Workloads by state", "Starts and stops", "Lateness of starts and stops", "CPU saved now", "Memory saved now",
			"CPU saved in the time range", "Memory saved in the time range",
		},
		alerts: map[string]alertLabels{"UselessScheduleLate": {"namespace": operatorNamespace}},
	},
	{
		reason: "a VirtualMachine runs, without a metrics API",
		do: func(t *testing.T, namespace string, _ *prometheus.Server) {
			t.Helper()
			waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
		},
		panels: []string{
			"VirtualMachines by phase", "Time until active", "Duration of usage requests", "Failed usage requests",
		},
	},
	{
		reason: "a user creates a ReplicaSet, creates an Ingress, and changes the annotation of the Ingress",
		do:     causeOptionalWrites,
		panels: []string{"podcount: labels", "ingress: annotations", "ingress: changes by others"},
	},
}

func causeFlips(t *testing.T, namespace string, _ *prometheus.Server) {
	t.Helper()
	const switches = 100
	flippingMachine(t, namespace, "m", switches, 0, 0)
	m := waitForPositions(t, namespace, "m", strings.Repeat("d", switches), defaultTimeout)
	annotate(t, m, v1beta1.PausedAnnotation, "true") // so that all flips are due at once, and exceed the limit of events
	for i := range switches {
		turnUp(t, namespace, fmt.Sprintf("m-%d", i))
	}
	annotate(t, m, v1beta1.PausedAnnotation, "false")
}

// causeWait adds a webhook that never answers. The API server waits for it at each update of a ReplicaSet.
func causeWait(t *testing.T, namespace string, _ *prometheus.Server) {
	t.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	createWebhook(t, namespace, admissionregistrationv1.ValidatingWebhook{
		Name:           "silent.example.com",
		ClientConfig:   admissionregistrationv1.WebhookClientConfig{URL: new("https://" + silent.Addr().String())},
		TimeoutSeconds: new(int32(5)),
		FailurePolicy:  new(admissionregistrationv1.Ignore),
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"replicasets"}},
		}},
	})
	probe := createReplicaSet(t, namespace, "probe", 0)
	eventually(t, defaultTimeout, func() (bool, string) {
		start, patch := time.Now(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
		err := admin(t).Patch(t.Context(), probe.DeepCopy(), patch, client.DryRunAll)
		return time.Since(start) > 4*time.Second, fmt.Sprintf("the API server does not wait for the webhook yet, error %v", err)
	})
	const twiceTheWorkers = 8
	for i := range twiceTheWorkers {
		createReplicaSet(t, namespace, fmt.Sprintf("rs-%d", i), 0)
	}
}

// causeWebhookErrors sends two wrong requests. The first request creates the counter of the errors. The second request
// increases the counter, so that Prometheus calculates a rate above zero.
func causeWebhookErrors(t *testing.T, namespace string, prom *prometheus.Server) {
	t.Helper()
	createMachine(t, namespace, "valid", nil)
	sendNoReview(t)
	waitForSeries(t, prom, `controller_runtime_webhook_requests_total{code="400"} > 0`)
	sendNoReview(t)
}

// sendNoReview sends a request to the conversion webhook. The body of the request is not a ConversionReview.
func sendNoReview(t *testing.T) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	url := fmt.Sprintf("https://127.0.0.1:%d/convert", clusterOf(t).webhookPort)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("no review"))
	if err != nil {
		t.Fatal(err)
	}
	if status, body := answer(t, client, request); status != http.StatusBadRequest {
		t.Errorf("the conversion webhook answers a request that is no review with status %d: %s", status, body)
	}
}

func causeQuotaErrors(t *testing.T, namespace string, _ *prometheus.Server) {
	t.Helper()
	createQuota(t, namespace, 3)
	createMachine(t, namespace, "limited", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 5 })
}

// causeStops creates a Deployment that the operator stops at once. Then it changes the recorded time of this stop, so
// that the stop is due again, and late. After each change, the operator adds the saved CPU and memory to its counters.
// There are two changes, because Prometheus sees an increase only after a first value.
func causeStops(t *testing.T, namespace string, prom *prometheus.Server) {
	t.Helper()
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: apiresource.MustParse("1"), corev1.ResourceMemory: apiresource.MustParse("1Gi"),
		}
	})
	waitForReplicas(t, d, 0)
	waitForSeries(t, prom, "useless_schedule_saved_cpu_cores > 0")
	annotate(t, d, v1beta1.LastScheduleTimeAnnotation, "2026-01-01T00:00:00Z")
	waitForSeries(t, prom, "useless_schedule_saved_cpu_core_seconds_total > 0")
	annotate(t, d, v1beta1.LastScheduleTimeAnnotation, "2026-01-01T00:00:00Z")
}

func causeOptionalWrites(t *testing.T, namespace string, _ *prometheus.Server) {
	t.Helper()
	createReplicaSet(t, namespace, "rs", 1)
	waitForPodCount(t, namespace, "rs", "1")
	createIngress(t, namespace, "web", nil)
	web := waitForAnnotations(t, namespace, "web", map[string]string{"foo": "bar"})
	annotate(t, web, "foo", "theirs")
}

// TestDashboard runs a cause for each panel of the Grafana dashboard, and for each alert. A real Prometheus scrapes a
// real operator. Each query of a panel must have a result above zero, and the alerts must fire.
func TestDashboard(t *testing.T) {
	if testing.Short() {
		t.Skip("Prometheus takes minutes to compile: make test-all runs this test")
	}
	useExclusiveCluster(t)
	grantPermissions(t, podcount.Name)
	grantPermissions(t, ingress.Name)
	port, certificates := freePort(t), copyCertificate(t)
	prom := startPrometheus(t, port)
	lease, restoreMigration := holdLease(t), failMigration(t)
	// The panel Memory has a query for GOMEMLIMIT. The operator's Deployment sets this variable, so the test does, too.
	operator := startOperator(t, []string{"GOMEMLIMIT=200MiB"}, "--leader-elect", "--namespace="+operatorNamespace, "--controllers=*,podcount,ingress",
		"--ingress-annotation=foo=bar", "--vm-usage-interval=1s", fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port),
		"--webhook-cert-dir="+certificates)
	operator.waitUntilReady(t)
	waitForAlert(t, prom, "UselessNoLeader", alertLabels{"namespace": operatorNamespace})
	if err := admin(t).Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	waitForAlert(t, prom, "UselessMigrationFails", alertLabels{"namespace": operatorNamespace})
	restoreMigration()
	waitForSeries(t, prom, `useless_storage_migration{state="complete"} == 1`)

	checkCauses(t, prom)
	delayFlips(t, operator)
	waitForAlert(t, prom, "UselessFlipsLate", alertLabels{"namespace": operatorNamespace})
	prom.SetCA(t, replaceCertificate(t, certificates, 10*time.Hour))
	waitForAlert(t, prom, "UselessCertificateExpires", alertLabels{"pod": "operator"})
	operator.Kill()
	waitForAlert(t, prom, "UselessOperatorDown", nil)
	for name, covered := range prom.Alerts {
		if !covered {
			t.Errorf("the alert %s has no cause", name)
		}
	}
}

// startPrometheus starts a Prometheus that scrapes an operator on a port of this machine.
func startPrometheus(t *testing.T, port int) *prometheus.Server {
	t.Helper()
	prom := prometheus.Start(t, prometheus.DefaultServiceMonitor(t), caBundles(t)[0], metricsToken(t, newNamespace(t)))
	prom.SetTargets(t, operatorNamespace, map[string]string{"operator": fmt.Sprintf("127.0.0.1:%d", port)})
	return prom
}

// failMigration makes the storage version migration fail: Machines may be stored in v1alpha1, but there is no
// conversion webhook. restore adds the webhook again. If the test does not call restore, its cleanup does.
func failMigration(t *testing.T) (restore func()) {
	t.Helper()
	c := clusterOf(t)
	crd := c.machines(t)
	conversion := crd.Spec.Conversion
	restore = sync.OnceFunc(func() {
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crd.Name}}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": conversion}})
		if err == nil {
			err = c.admin.Patch(context.Background(), crd, client.RawPatch(types.MergePatchType, patch))
		}
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		restore()
		c.setStoredVersions(t, beta) // a failed test can end before the migration
	})
	none := crd.DeepCopy()
	none.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	if err := c.admin.Update(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	c.setStoredVersions(t, alpha, beta)
	return restore
}

// checkCauses runs all causes, and checks their panels and alerts.
func checkCauses(t *testing.T, prom *prometheus.Server) {
	t.Helper()
	panels := prometheus.DashboardQueries(t)
	for _, c := range causes {
		if c.do != nil {
			c.do(t, newNamespace(t), prom)
		}
	}
	for _, c := range causes {
		for _, title := range c.panels {
			checkPanel(t, prom, title, panels[title])
			delete(panels, title)
		}
		for name, want := range c.alerts {
			waitForAlert(t, prom, name, want)
		}
	}
	for title := range panels {
		t.Errorf("the panel %q has no cause", title)
	}
}

// delayFlips suspends the operator while four flips are due. The alert uses the 99th percentile. Four flips are more
// than 1 % of all flips. delayFlips resumes the operator before another replica could become the leader.
func delayFlips(t *testing.T, operator *operatorProcess) {
	t.Helper()
	namespace := newNamespace(t)
	flippingMachine(t, namespace, "m", 4, 2, 0)
	turnUpInOrder(t, recordSwitches(t, namespace), namespace, "m-0", "m-1", "m-2", "m-3")
	if err := operator.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(8 * time.Second) // the alert needs a delay of more than 5 s
	if err := operator.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waitForPositions(t, namespace, "m", "dddd", defaultTimeout)
}

// checkPanel waits until each query of a panel has a result above zero.
func checkPanel(t *testing.T, prom *prometheus.Server, title string, queries []string) {
	t.Helper()
	if len(queries) == 0 {
		t.Errorf("the dashboard has no panel %q", title)
	}
	for _, query := range queries {
		waitForSeries(t, prom, query+" > 0")
	}
}

// metricsToken returns a token of a ServiceAccount that may read metrics.
func metricsToken(t *testing.T, namespace string) string {
	t.Helper()
	token := createServiceAccount(t, namespace, "prometheus")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "useless-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "prometheus"}},
	}
	if err := admin(t).Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	return token
}

func waitForSeries(t *testing.T, prom *prometheus.Server, query string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		series, err := prom.Query(t, query)
		return series > 0, fmt.Sprintf("%s returns %d series, error %v", query, series, err)
	})
}

// waitForAlert waits until an alert with the wanted labels fires, or has fired in the last ten minutes. It marks the
// alert in prom.Alerts.
func waitForAlert(t *testing.T, prom *prometheus.Server, name string, want alertLabels) {
	t.Helper()
	if _, ok := prom.Alerts[name]; !ok {
		t.Errorf("there is no alert %s", name)
		return
	}
	prom.Alerts[name] = true
	matchers := fmt.Sprintf(`alertname=%q, alertstate="firing"`, name)
	for label, value := range want {
		matchers += fmt.Sprintf(", %s=%q", label, value)
	}
	waitForSeries(t, prom, "max_over_time(ALERTS{"+matchers+"}[10m]) > 0")
}
