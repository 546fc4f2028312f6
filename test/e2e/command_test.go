// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"container.training/useless/test/program"
)

// try types a command, gives it what it reads from its standard input, and shows how long it took. It returns what the
// command printed, warnings and errors among it.
func try(t *testing.T, stdin string, command ...string) (string, error) {
	t.Helper()
	start := time.Now()
	output, err := quietly(stdin, command...)
	t.Logf("%6.1f s  $ %.160s", time.Since(start).Seconds(), strings.Join(command, " "))
	return output, err
}

// quietly is try without a line in the log, for what comes after a test: why it failed stands at the end then.
func quietly(stdin string, command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = workDir // operator-sdk leaves files where it runs
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// must types a command that has to succeed.
func must(t *testing.T, command ...string) string {
	t.Helper()
	return mustRead(t, "", command...)
}

// mustRead types a command that reads its standard input and has to succeed.
func mustRead(t *testing.T, stdin string, command ...string) string {
	t.Helper()
	output, err := try(t, stdin, command...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command[0], err, output)
	}
	return output
}

// stdout types a command that has to succeed, and returns its standard output, without the warnings.
func stdout(t *testing.T, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = workDir
	output, err := program.Output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// get reads an object, or a list of objects, with kubectl get.
func get[T any](t *testing.T, args ...string) T {
	t.Helper()
	cmd := exec.Command("kubectl", append([]string{"get", "-o", "json"}, args...)...)
	var object T
	var stderr bytes.Buffer // apart, for its warnings are no JSON
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(output, &object)
	}
	if err != nil {
		t.Fatalf("kubectl get %s: %v\n%s%s", strings.Join(args, " "), err, stderr.String(), output)
	}
	return object
}

// eventually asks until the answer is empty; the answer says what is missing.
func eventually(t *testing.T, timeout time.Duration, missing func() string) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		what := missing()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", timeout, what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-tick.C:
		}
	}
}

// cleanUp deletes what a test has made, also after a failure.
func cleanUp(t *testing.T, args ...string) {
	t.Helper()
	if output, err := quietly("", append([]string{"kubectl", "delete", "--ignore-not-found"}, args...)...); err != nil {
		t.Errorf("clean up %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}
