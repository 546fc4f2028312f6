// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workflows checks the workflows in .github/workflows. make lint-workflows checks their syntax.
package workflows

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const repository = "../.."

// others maps the beginning of each script that is not a make target to the reason. All other scripts must be make
// targets, so that everyone can run them without GitHub.
var others = map[string]string{
	"sudo apt-get update ": "installs packages of the runner's system",
	"docker login ":        "the password is a secret of the workflow",
	"xargs cosign sign ":   "signs with the identity of the workflow",
	"cosign sign-blob ":    "signs with the identity of the workflow",
	"while IFS=@ read ":    "sets outputs of a step",
	"gh release create ":   "uses the token of the workflow",
}

// writers lists the jobs that get permissions to write, and these permissions.
var writers = map[string][]string{
	"codeql.yml/analyze":      {"security-events"},
	"release.yml/publish":     {"attestations", "contents", "id-token"},
	"scorecard.yml/scorecard": {"id-token", "security-events"},
}

type workflow struct {
	Permissions permissions    `json:"permissions"`
	Jobs        map[string]job `json:"jobs"`
}

// permissions maps scopes, such as contents, to an access: read, write or none.
type permissions map[string]string

type job struct {
	Permissions permissions `json:"permissions"`
	Strategy    struct {
		Matrix struct {
			Target []string `json:"target"`
		} `json:"matrix"`
	} `json:"strategy"`
	Steps []struct {
		Run string            `json:"run"`
		Env map[string]string `json:"env"`
	} `json:"steps"`
}

// TestWorkflows checks that only the jobs in writers get permissions to write, and that the make targets exist.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(repository, ".github", "workflows", "*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("found the workflows %v, error %v", files, err)
	}
	makefile, used := read(t, filepath.Join(repository, "Makefile")), map[string]bool{}
	for _, file := range files {
		for _, problem := range problems(filepath.Base(file), read(t, file), makefile, used) {
			t.Errorf("%s: %s", filepath.Base(file), problem)
		}
	}
	for begins := range others {
		if !used[begins] {
			t.Errorf("no script begins with %q", begins)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// problems returns what is wrong with a workflow. It marks in used the entries of others that match a script.
func problems(file, text, makefile string, used map[string]bool) (found []string) {
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		return []string{err.Error()}
	}
	if w.Permissions == nil {
		found = append(found, "it has no permissions at the top level, so the repository's default applies")
	}
	for _, scope := range written(w.Permissions) {
		found = append(found, "all jobs get the permission to write "+scope)
	}
	for name, j := range w.Jobs {
		if got, want := written(j.Permissions), writers[file+"/"+name]; !slices.Equal(got, want) {
			found = append(found, fmt.Sprintf("the job %s may write %v, want %v", name, got, want))
		}
		found = append(found, scriptProblems(j, makefile, used)...)
	}
	return found
}

// written returns the sorted scopes that permissions allow to write.
func written(p permissions) (scopes []string) {
	for scope, access := range p {
		if access != "read" && access != "none" {
			scopes = append(scopes, scope)
		}
	}
	slices.Sort(scopes)
	return scopes
}

// scriptProblems returns what is wrong with the scripts of a job. It marks in used the entries of others that match.
func scriptProblems(j job, makefile string, used map[string]bool) (found []string) {
	for _, step := range j.Steps {
		if begins := other(step.Run); begins != "" {
			used[begins] = true
			continue
		}
		for line := range strings.Lines(step.Run) {
			if problem := checkCommand(line, makefile, j.Strategy.Matrix.Target); problem != "" {
				found = append(found, problem)
			}
		}
	}
	return found
}

// other returns the entry of others that matches a script, or "".
func other(script string) string {
	for begins := range others {
		if strings.HasPrefix(script, begins) {
			return begins
		}
	}
	return ""
}

var (
	command = regexp.MustCompile(`^(?:sudo env (?:\w+=\S+ )*)?make ([^>&;|]+)`)
	target  = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// checkCommand returns what is wrong with a command, or "". The variable TARGET stands for each target of the matrix.
func checkCommand(line, makefile string, matrix []string) string {
	parts := command.FindStringSubmatch(line)
	if parts == nil {
		return fmt.Sprintf("%q is not a make target, and has no reason in this test", strings.TrimSpace(line))
	}
	known := []string{}
	for _, rule := range target.FindAllStringSubmatch(makefile, -1) {
		known = append(known, rule[1])
	}
	for word := range strings.FieldsSeq(parts[1]) {
		names := []string{word}
		switch {
		case word == `"$TARGET"`:
			names = matrix
		case strings.Contains(word, "=") || strings.HasPrefix(word, "--"):
			continue
		}
		for _, name := range names {
			if !slices.Contains(known, name) {
				return "the Makefile has no target " + name
			}
		}
	}
	return ""
}

// TestProblems requires exactly one problem for each mistake.
func TestProblems(t *testing.T) {
	const makefile = ".PHONY: lint\nlint: ## Lint\nVAR := none\n"
	step := func(run string) string {
		const job = "permissions: {}\njobs: {job: {strategy: {matrix: {target: [lint, other]}}, steps: [{run: '%s'}]}}"
		return fmt.Sprintf(job, run)
	}
	for _, test := range []struct{ workflow, want string }{
		{step("make lint"), ""},
		{step(`sudo env PATH="$PATH" make --silent lint OUT=1 > none`), ""},
		{step("make lint none"), "the Makefile has no target none"},
		{step(`make "$TARGET"`), "the Makefile has no target other"},
		{step("go test ./..."), `"go test ./..." is not a make target, and has no reason in this test`},
		{"permissions: {contents: read}", ""},
		{"permissions: {contents: write}", "all jobs get the permission to write contents"},
		{"permissions: {}\njobs: {publish: {permissions: {id-token: write, contents: write, attestations: write}}}", ""},
		{"permissions: {}\njobs: {publish: {permissions: {id-token: write}}}", "the job publish may write [id-token], want [attestations contents id-token]"},
		{"permissions: {}\njobs: {lint: {permissions: {contents: write}}}", "the job lint may write [contents], want []"},
		{"jobs: {}", "it has no permissions at the top level, so the repository's default applies"},
	} {
		if got := strings.Join(problems("release.yml", test.workflow, makefile, map[string]bool{}), "\n"); got != test.want {
			t.Errorf("%s: got %q, want %q", test.workflow, got, test.want)
		}
	}
}
