// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/controller"
)

func TestInvalidConfiguration(t *testing.T) {
	useSharedCluster(t)
	for _, tt := range []struct {
		reason string
		args   []string
		env    []string
		want   []string // each must be part of the error line
	}{
		{reason: "an unknown flag", args: []string{"--nope"}, want: []string{"-nope"}},
		{reason: "a bad value", args: []string{"--max-switches=many"}, want: []string{"many", "max-switches"}},
		{
			reason: "a value out of range",
			args:   []string{"--max-switches=1001"}, want: []string{"1001", "--max-switches", "from 1 to 1000"},
		},
		{
			reason: "a bad value in the environment",
			env:    []string{"USELESS_MAX_SWITCHES=many"}, want: []string{"many", "USELESS_MAX_SWITCHES"},
		},
		{reason: "an unknown controller", args: []string{"--controllers=nope"}, want: append(controller.Names(), "nope")},
		{reason: "an argument that is not a flag", args: []string{"run"}, want: []string{"run"}},
		{
			reason: "self-managed certificates without a namespace",
			args:   []string{"--self-managed-certs"}, want: []string{"--namespace"},
		},
	} {
		t.Run(tt.reason+" ends the operator with a one-line error", func(t *testing.T) {
			t.Parallel()
			operator := startOperator(t, tt.env, tt.args...)
			if code := operator.ended(t); code != 1 {
				t.Errorf("exit code %d, not 1", code)
			}
			line, more, _ := strings.Cut(operator.Log(), "\n")
			if more != "" || !strings.HasPrefix(line, "error: ") {
				t.Errorf("the log is not one line that begins with \"error: \":\n%s", operator.Log())
			}
			for _, part := range tt.want {
				if !strings.Contains(line, part) {
					t.Errorf("%q does not contain %q", line, part)
				}
			}
		})
	}
}

func TestLifecycle(t *testing.T) {
	useExclusiveCluster(t)
	namespace := newNamespace(t)
	metricsPort, pprofPort := freePort(t), freePort(t)
	operator := startOperator(t, []string{"USELESS_MAX_SWITCHES=3"}, fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", metricsPort),
		fmt.Sprintf("--pprof-bind-address=127.0.0.1:%d", pprofPort))
	t.Run("the operator becomes ready only after its webhooks serve", func(t *testing.T) { testReadiness(t, operator) })
	t.Run("an environment variable sets a flag", func(t *testing.T) { testMaxSwitches(t, namespace, 3) })
	t.Run("metrics require a token with permission to read them", func(t *testing.T) {
		testMetrics(t, namespace, metricsPort)
	})
	t.Run("profiles are served only at their own address", func(t *testing.T) { testProfiles(t, operator, pprofPort) })
	for name, port := range map[string]int{"webhooks": clusterOf(t).webhookPort, "metrics": metricsPort} {
		t.Run("the "+name+" endpoint accepts only HTTP/1.1 over TLS 1.3", func(t *testing.T) {
			onlyHTTP1(t, port)
			onlyTLS13(t, port)
		})
	}
	t.Run("SIGTERM ends a busy operator within 20 s", func(t *testing.T) { testGracefulEnd(t, operator, namespace) })
	t.Run("a flag overrides its environment variable", func(t *testing.T) {
		startOperator(t, []string{"USELESS_MAX_SWITCHES=3"}, "--max-switches=5").waitUntilReady(t)
		testMaxSwitches(t, namespace, 5)
	})
}

// testReadiness polls the readiness probe from the start of the operator. As soon as the probe succeeds, the webhook
// port must accept a connection.
func testReadiness(t *testing.T, operator *operatorProcess) {
	eventually(t, defaultTimeout, func() (bool, string) {
		status, body := operator.probe(t, "/readyz")
		if status != http.StatusOK {
			return false, body
		}
		connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", clusterOf(t).webhookPort), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatalf("the operator is ready, but its webhook port accepts no connection: %v", err)
		}
		connection.Close()
		return true, ""
	})
	if status, body := operator.probe(t, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, body)
	}
}

// testMaxSwitches creates Machines with maxSwitches and maxSwitches+1 switches in a dry run. Only the second Machine
// must be rejected.
func testMaxSwitches(t *testing.T, namespace string, maxSwitches int32) {
	for _, count := range []int32{maxSwitches, maxSwitches + 1} {
		m := newMachine(namespace, "max")
		m.Spec.Switches.Count = count
		err := admin(t).Create(t.Context(), m, client.DryRunAll)
		if rejected := err != nil; rejected != (count > maxSwitches) {
			t.Errorf("create a Machine with %d switches when --max-switches is %d: %v", count, maxSwitches, err)
		}
	}
}

func testMetrics(t *testing.T, namespace string, port int) {
	flippingMachine(t, namespace, "m", 2, 0, 0)
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-1")
	switches.untilObject(t, "m-1", "is turned down", flipped)

	reader, other := createServiceAccount(t, namespace, "reader"), createServiceAccount(t, namespace, "other")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "useless-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "reader"}},
	}
	if err := admin(t).Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		reason, token string
		status        int
		want          []string
	}{
		{"no token", "", http.StatusUnauthorized, nil},
		{"a token without permission", other, http.StatusForbidden, nil},
		{"a token with permission", reader, http.StatusOK, []string{
			"\nuseless_flips_total 1\n",
			"\nuseless_flip_lateness_seconds_count 1\n",
			"\nuseless_events_dropped_total 0\n",
			"\nuseless_machines{condition=\"Ready\",status=\"True\"} ",
			"\ncontroller_runtime_reconcile_total{controller=\"machine\"",
		}},
	} {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(caBundles(t)[0])
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: webhookService}, DisableKeepAlives: true,
		}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.token != "" {
			request.Header.Set("Authorization", "Bearer "+tt.token)
		}
		// The API server's authorizer caches RBAC objects, so the binding may take effect a moment later.
		eventually(t, defaultTimeout, func() (bool, string) {
			status, body := answer(t, client, request)
			for _, part := range tt.want {
				if !strings.Contains(body, part) {
					return false, fmt.Sprintf("%s: the response with status %d does not contain %q:\n%s", tt.reason, status, part, body)
				}
			}
			return status == tt.status, fmt.Sprintf("%s: status %d, want %d: %s", tt.reason, status, tt.status, body)
		})
	}
}

// testProfiles reads a heap profile and an execution trace from the port of the profiles. The server of the health
// probes also uses HTTP without TLS. It must not serve profiles.
func testProfiles(t *testing.T, operator *operatorProcess, port int) {
	for path, prefix := range map[string]string{
		"/debug/pprof/heap":              "\x1f\x8b", // a profile is compressed with gzip
		"/debug/pprof/trace?seconds=0.1": "go 1.",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		if status, body := answer(t, http.DefaultClient, request); status != http.StatusOK || !strings.HasPrefix(body, prefix) {
			t.Errorf("%s: status %d, and the body does not begin with %q: %.100q", path, status, prefix, body)
		}
		if status, _ := operator.probe(t, path); status != http.StatusNotFound {
			t.Errorf("the health probes answer %s with status %d, want 404", path, status)
		}
	}
}

// createServiceAccount creates a ServiceAccount and returns a token for it.
func createServiceAccount(t *testing.T, namespace, name string) (token string) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := admin(t).Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if err := admin(t).SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// onlyHTTP1 checks that the server on a port never negotiates HTTP/2 and rejects a client that offers only HTTP/2.
func onlyHTTP1(t *testing.T, port int) {
	t.Helper()
	for _, tt := range []struct {
		offer []string
		want  string // the negotiated protocol; empty if the server must reject the client
	}{
		{offer: []string{"h2", "http/1.1"}, want: "http/1.1"},
		{offer: []string{"h2"}},
	} {
		connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true, NextProtos: tt.offer})
		if rejected := err != nil; rejected != (tt.want == "") {
			t.Errorf("the client offers %v: got error %v, want protocol %q", tt.offer, err, tt.want)
		}
		if err != nil {
			continue
		}
		if got := connection.ConnectionState().NegotiatedProtocol; got != tt.want {
			t.Errorf("the client offers %v: the server chose %q, want %q", tt.offer, got, tt.want)
		}
		connection.Close()
	}
}

// onlyTLS13 checks that the server on a port rejects a client that supports at most TLS 1.2, and accepts TLS 1.3.
func onlyTLS13(t *testing.T, port int) {
	t.Helper()
	for newest, rejected := range map[uint16]bool{tls.VersionTLS12: true, tls.VersionTLS13: false} {
		connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true, MaxVersion: newest})
		if (err != nil) != rejected {
			t.Errorf("a client with at most %s: %v", tls.VersionName(newest), err)
		}
		if err == nil {
			connection.Close()
		}
	}
}

func testGracefulEnd(t *testing.T, operator *operatorProcess, namespace string) {
	slowMachine(t, namespace, "waiting", 2)
	waitForPositions(t, namespace, "waiting", "dd", defaultTimeout)
	turnUp(t, namespace, "waiting-0")
	waitForPositions(t, namespace, "waiting", "ud", defaultTimeout)
	signalled := time.Now()
	if err := operator.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := operator.ended(t); code != 0 {
		t.Errorf("exit code %d: %v", code, operator.Err())
	}
	t.Logf("ended %s after SIGTERM", time.Since(signalled))
	if took := time.Since(signalled); took > 20*time.Second {
		t.Errorf("ended %s after SIGTERM, want at most 20s", took)
	}
}
