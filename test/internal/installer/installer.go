// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package installer runs kustomize and helm for tests. A test that uses it must be in a folder directly below test.
package installer

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"container.training/useless/test/internal/executable"
)

const repository = "../.."

// Chart is the folder of the Helm chart.
const Chart = repository + "/charts/useless-operator"

var (
	buildKustomize = sync.OnceValues(func() (string, error) { return build("kustomize") })
	buildHelm      = sync.OnceValues(func() (string, error) { return build("helm") })
)

// build compiles a tool of hack/tools and returns its path in Go's build cache.
func build(name string) (path string, err error) {
	command := exec.Command("hack/tool", "-n", name)
	command.Dir = repository
	out, err := executable.Output(command)
	return strings.TrimSpace(out), err
}

// Kustomize renders a kustomization. As in the documentation, kustomization.yaml is next to a clone of the repository.
func Kustomize(t *testing.T, kustomization string) []byte {
	t.Helper()
	kustomize, err := buildKustomize()
	if err != nil {
		t.Fatal(err)
	}
	clone, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(
		os.Symlink(clone, filepath.Join(dir, "useless-operator")),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600),
		executable.Inputs(filepath.Join(clone, "config")),
	); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), kustomize, "build", dir)
	// Standard error must not be mixed with the manifests. The test fails if kustomize itself prints a warning, for
	// example about a deprecated field.
	var stderr strings.Builder
	command.Stderr = &stderr
	rendered, err := command.Output()
	if err != nil || strings.Contains(stderr.String(), "Warning: ") {
		t.Fatalf("kustomize: %v\n%s", err, stderr.String())
	}
	return rendered
}

// Helm returns a helm command for the control plane of a kubeconfig. The command does not use the files of the user. An
// empty kubeconfig means no control plane.
func Helm(t *testing.T, kubeconfig string, args ...string) *exec.Cmd {
	t.Helper()
	helm, err := buildHelm()
	if err != nil {
		t.Fatal(err)
	}
	if err := executable.Inputs(Chart); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if kubeconfig == "" {
		kubeconfig = filepath.Join(home, "kubeconfig")
	}
	command := exec.CommandContext(t.Context(), helm, args...)
	command.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + home, "KUBECONFIG=" + kubeconfig,
		"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
	}
	return command
}

// Objects returns all objects in manifests.
func Objects(t *testing.T, manifests []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 { // a template can be empty
			objects = append(objects, object)
		}
	}
}
