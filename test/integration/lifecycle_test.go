// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/tls"
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

func TestMistakesAtTheStart(t *testing.T) {
	shared(t)
	for _, tt := range []struct {
		reason string
		args   []string
		env    []string
		want   []string // parts of the one line
	}{
		{reason: "an unknown flag", args: []string{"--nope"}, want: []string{"-nope"}},
		{reason: "a bad value", args: []string{"--max-switches=many"}, want: []string{"many", "max-switches"}},
		{reason: "a value out of range", args: []string{"--max-switches=1001"}, want: []string{"1001", "--max-switches", "from 1 to 1000"}},
		{reason: "a bad value in the environment", env: []string{"USELESS_MAX_SWITCHES=many"}, want: []string{"many", "USELESS_MAX_SWITCHES"}},
		{reason: "an unknown controller", args: []string{"--controllers=nope"}, want: append(controller.Names(), "nope")},
		{reason: "something that is no flag", args: []string{"run"}, want: []string{"run"}},
		{reason: "certificates without a place", args: []string{"--self-managed-certs"}, want: []string{"--namespace"}},
	} {
		t.Run(tt.reason+" ends the operator with one clear line", func(t *testing.T) {
			t.Parallel()
			operator := startOperator(t, tt.env, tt.args...)
			if code := operator.ended(t); code != 1 {
				t.Errorf("exit code %d, not 1", code)
			}
			line, more, _ := strings.Cut(operator.Log(), "\n")
			if more != "" || !strings.HasPrefix(line, "error: ") {
				t.Errorf("not one line of error: %s", operator.Log())
			}
			for _, part := range tt.want {
				if !strings.Contains(line, part) {
					t.Errorf("%q does not say %q", line, part)
				}
			}
		})
	}
}

func TestLife(t *testing.T) {
	alone(t)
	namespace := newNamespace(t)
	metricsPort := freePort(t)
	operator := startOperator(t, []string{"USELESS_MAX_SWITCHES=3"}, fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", metricsPort))
	t.Run("it is ready when the webhooks serve, and not before", func(t *testing.T) { testReadiness(t, operator) })
	t.Run("a flag's twin in the environment holds", func(t *testing.T) { testMaxSwitches(t, namespace, 3) })
	t.Run("only those who may read the metrics do", func(t *testing.T) { testMetrics(t, namespace, metricsPort) })
	for name, port := range map[string]int{"webhooks": clusterOf(t).webhookPort, "metrics": metricsPort} {
		t.Run("it serves "+name+" over HTTP/1.1 and TLS 1.3, and nothing else", func(t *testing.T) {
			onlyHTTP1(t, port)
			onlyTLS13(t, port)
		})
	}
	t.Run("it ends soon when it is asked to, in the middle of its work", func(t *testing.T) { testGracefulEnd(t, operator, namespace) })
	t.Run("a flag wins over its twin in the environment", func(t *testing.T) {
		startOperator(t, []string{"USELESS_MAX_SWITCHES=3"}, "--max-switches=5").waitUntilReady(t)
		testMaxSwitches(t, namespace, 5)
	})
}

// testReadiness asks from the start on: whenever the operator says that it is ready, its webhooks must be there.
func testReadiness(t *testing.T, operator *operatorProcess) {
	eventually(t, patience, func() (bool, string) {
		status, body := operator.probe(t, "/readyz")
		if status != http.StatusOK {
			return false, body
		}
		connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", clusterOf(t).webhookPort), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatalf("ready without webhooks: %v", err)
		}
		connection.Close()
		return true, ""
	})
	if status, body := operator.probe(t, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, body)
	}
}

// testMaxSwitches asks for as many switches as allowed, and for one more. Nothing is created.
func testMaxSwitches(t *testing.T, namespace string, most int32) {
	for _, count := range []int32{most, most + 1} {
		m := aMachine(namespace, "max")
		m.Spec.Switches.Count = count
		err := admin(t).Create(t.Context(), m, client.DryRunAll)
		if refused := err != nil; refused != (count > most) {
			t.Errorf("%d switches, when %d are allowed: %v", count, most, err)
		}
	}
}

func testMetrics(t *testing.T, namespace string, port int) {
	flippingMachine(t, namespace, "m", 2, 0, 0)
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-1")
	switches.untilObject(t, "m-1", "is turned down", flipped)

	reader, nobody := createServiceAccount(t, namespace, "reader"), createServiceAccount(t, namespace, "nobody")
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
		{"no token says nobody is there", "", http.StatusUnauthorized, nil},
		{"whoever is there needs the right", nobody, http.StatusForbidden, nil},
		{"who has the right reads", reader, http.StatusOK, []string{
			"\nuseless_flips_total 1\n",
			"\nuseless_flip_lateness_seconds_count 1\n",
			"\nuseless_events_dropped_total 0\n",
			"\nuseless_machines{condition=\"Ready\",status=\"True\"} ",
			"\ncontroller_runtime_reconcile_total{controller=\"machine\"",
		}},
	} {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // self-signed, without a folder for its certificate
			DisableKeepAlives: true,
		}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.token != "" {
			request.Header.Set("Authorization", "Bearer "+tt.token)
		}
		// The API server may learn of the binding a moment later.
		eventually(t, patience, func() (bool, string) {
			status, body := answer(t, client, request)
			for _, part := range tt.want {
				if !strings.Contains(body, part) {
					return false, fmt.Sprintf("%s: no %q in status %d:\n%s", tt.reason, part, status, body)
				}
			}
			return status == tt.status, fmt.Sprintf("%s: status %d: %s", tt.reason, status, body)
		})
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

func onlyHTTP1(t *testing.T, port int) {
	t.Helper()
	for _, tt := range []struct {
		offer []string
		want  string
	}{
		{offer: []string{"h2", "http/1.1"}, want: "http/1.1"},
		{offer: []string{"h2"}},
	} {
		connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true, NextProtos: tt.offer})
		if refused := err != nil; refused != (tt.want == "") {
			t.Errorf("offered %v: %v", tt.offer, err)
		}
		if err != nil {
			continue
		}
		if got := connection.ConnectionState().NegotiatedProtocol; got != tt.want {
			t.Errorf("offered %v, chose %q", tt.offer, got)
		}
		connection.Close()
	}
}

// onlyTLS13 offers no newer version than each, which only the newest of them is enough for.
func onlyTLS13(t *testing.T, port int) {
	t.Helper()
	for newest, refused := range map[uint16]bool{tls.VersionTLS12: true, tls.VersionTLS13: false} {
		connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true, MaxVersion: newest})
		if (err != nil) != refused {
			t.Errorf("offered %s: %v", tls.VersionName(newest), err)
		}
		if err == nil {
			connection.Close()
		}
	}
}

func testGracefulEnd(t *testing.T, operator *operatorProcess, namespace string) {
	slowMachine(t, namespace, "waiting", 2)
	waitForPositions(t, namespace, "waiting", "dd", patience)
	turnUp(t, namespace, "waiting-0")
	waitForPositions(t, namespace, "waiting", "ud", patience)
	asked := time.Now()
	if err := operator.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := operator.ended(t); code != 0 {
		t.Errorf("exit code %d: %v", code, operator.Err())
	}
	t.Logf("ended %s after SIGTERM", time.Since(asked))
	if took := time.Since(asked); took > 20*time.Second {
		t.Errorf("ended %s after SIGTERM", took)
	}
}
