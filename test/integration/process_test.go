// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"container.training/useless/hack/cluster"
	"container.training/useless/test/internal/executable"
)

// An operatorProcess is an operator in a separate process, which a test can kill.
type operatorProcess struct {
	*cluster.Process
	probes string // base URL of the health probes
}

// startOperator starts the operator with the permissions of its ServiceAccount. It does not wait until the operator is
// ready. args follow the default arguments and override them. The operator stops when the test ends.
func startOperator(t *testing.T, env []string, args ...string) *operatorProcess {
	t.Helper()
	return startOperatorIn(t, nil, env, args...)
}

// startOperatorIn is like startOperator, but the command in launcher starts the operator. The operator's command line
// follows the arguments of launcher. The launcher must replace itself with the operator (exec).
func startOperatorIn(t *testing.T, launcher, env []string, args ...string) *operatorProcess {
	t.Helper()
	path, err := executable.BuildManager()
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, append(slices.Clip(launcher), path), env, args...)
}

// startProgram is like startOperatorIn for any build of the operator. The last element of command is the path of the
// program. The other elements are the launcher.
func startProgram(t *testing.T, command, env []string, args ...string) *operatorProcess {
	t.Helper()
	port := freePort(t)
	args = append([]string{
		"--kubeconfig=" + clusterOf(t).operatorKubeconfig,
		"--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", clusterOf(t).webhookPort), "--webhook-cert-dir=" + clusterOf(t).webhookDir,
		"--metrics-bind-address=0",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", port),
	}, args...)
	log := filepath.Join(t.TempDir(), "operator.log")
	last := len(command) - 1
	path, err := executable.Name(command[last], t.TempDir(), processName())
	if err != nil {
		t.Fatal(err)
	}
	command = slices.Concat(command[:last], []string{path}, args)
	process, err := cluster.StartProcess(cluster.Command{Name: "useless-operator", Path: command[0], Args: command[1:], Env: env, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Stop(10 * time.Second)
		if text, err := os.ReadFile(log); err != nil || strings.Contains(string(text), "DATA RACE") {
			t.Errorf("the operator's log reports a data race, or cannot be read: %v", err)
		}
		if t.Failed() {
			t.Logf("the end of the operator's log:\n%s", process.Log())
		}
	})
	return &operatorProcess{process, fmt.Sprintf("http://127.0.0.1:%d", port)}
}

// startedOperator is like startOperator, but returns when the operator is ready.
func startedOperator(t *testing.T, args ...string) *operatorProcess {
	t.Helper()
	operator := startOperator(t, nil, args...)
	operator.waitUntilReady(t)
	return operator
}

func (p *operatorProcess) waitUntilReady(t *testing.T) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		status, body := p.probe(t, "/readyz")
		return status == http.StatusOK, body
	})
}

// checkRuns stops the test if the operator has ended.
func (p *operatorProcess) checkRuns(t *testing.T) {
	t.Helper()
	select {
	case <-p.Done():
		t.Fatalf("the operator ended: %v", p.Err())
	default:
	}
}

// probe requests a health probe. The status is 0 if the request failed. The test fails if the operator has ended.
func (p *operatorProcess) probe(t *testing.T, path string) (status int, body string) {
	t.Helper()
	p.checkRuns(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.probes+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return answer(t, http.DefaultClient, request)
}

// answer sends a request and returns the response. If the request fails, the status is 0 and the body is the error.
func answer(t *testing.T, client *http.Client, request *http.Request) (status int, body string) {
	t.Helper()
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// ended waits until the operator has ended and returns its exit code.
func (p *operatorProcess) ended(t *testing.T) int {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(defaultTimeout):
		t.Fatalf("the operator did not end within %s", defaultTimeout)
	}
	var exit *exec.ExitError
	switch err := p.Err(); {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	default:
		t.Fatal(err)
		return -1
	}
}
