// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"container.training/useless/hack/console"
	"container.training/useless/test/internal/executable"
)

// try runs a command with a standard input and logs its duration. It returns the command's combined output.
func try(t *testing.T, stdin string, command ...string) (string, error) {
	t.Helper()
	start := time.Now()
	output, err := quietly(stdin, command...)
	t.Logf("%6.1f s  $ %.160s", time.Since(start).Seconds(), strings.Join(command, " "))
	return output, err
}

// quietly is like try, but does not log. Cleanups use it, so that the reason for a failure is at the end of the log.
func quietly(stdin string, command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = workDir // operator-sdk leaves files in its working directory
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// must runs a command that must succeed.
func must(t *testing.T, command ...string) string {
	t.Helper()
	return mustRead(t, "", command...)
}

// mustRead runs a command with a standard input. The command must succeed.
func mustRead(t *testing.T, stdin string, command ...string) string {
	t.Helper()
	output, err := try(t, stdin, command...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command[0], err, output)
	}
	return output
}

// runDocumented calls documented, runs the returned commands, and returns their combined output. The commands must
// succeed.
func runDocumented(t *testing.T, begins string, replacements ...string) string {
	t.Helper()
	script := strings.Join(documented(t, begins, replacements...), "\n")
	return must(t, "bash", "-e", "-c", script)
}

// documented returns the first command of docs/installing.md that has a prefix (begins), and the commands after it in
// its block. It replaces the name of the registry. replacements are pairs of an old and a new text. The commands must
// contain each old text.
func documented(t *testing.T, begins string, replacements ...string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs", "installing.md"))
	if err != nil {
		t.Fatal(err)
	}
	replacer := strings.NewReplacer(append(replacements, "registry.example.com", registry)...)
	for _, block := range console.Blocks(string(page)) {
		first := slices.IndexFunc(block.Commands, func(c console.Command) bool { return strings.HasPrefix(c.Text, begins) })
		if first < 0 {
			continue
		}
		var original, commands []string
		for _, c := range block.Commands[first:] {
			original = append(original, c.WithoutRemark())
			command := replacer.Replace(c.WithoutRemark())
			if arguments, isMake := strings.CutPrefix(command, "make "); isMake {
				command = "make -s -C " + absolute(t, repository) + " " + arguments
			}
			commands = append(commands, command)
		}
		for pair := range slices.Chunk(replacements, 2) {
			if !strings.Contains(strings.Join(original, "\n"), pair[0]) {
				t.Fatalf("the commands from %q in docs/installing.md do not contain %q", begins, pair[0])
			}
		}
		return commands
	}
	t.Fatalf("docs/installing.md has no block with the command %q", begins)
	return nil
}

// stdout runs a command that must succeed, and returns its standard output without warnings.
func stdout(t *testing.T, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = workDir
	output, err := executable.Output(cmd)
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return output
}

// get reads an object, or a list of objects, with kubectl get.
func get[T any](t *testing.T, args ...string) T {
	t.Helper()
	cmd := exec.Command("kubectl", append([]string{"get", "-o", "json"}, args...)...)
	var object T
	var stderr bytes.Buffer // separate, because warnings are not JSON
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

// eventually calls missing until it returns an empty string. missing describes the condition that is not met yet.
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
			t.Fatalf("timed out after %s: %s", timeout, what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-tick.C:
		}
	}
}

// cleanUp deletes objects of a test. If this fails, it reports an error and the test continues.
func cleanUp(t *testing.T, args ...string) {
	t.Helper()
	if output, err := quietly("", append([]string{"kubectl", "delete", "--ignore-not-found"}, args...)...); err != nil {
		t.Errorf("clean up %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}
