// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chart generates most templates of the Helm chart from the kustomizations in config/. It does not generate the
// Namespace, because helm or the user creates it. It does not generate the Deployment, because its template is written
// by hand.
//
// make chart runs it. It must run in the root folder of the repository.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// generated is the folder of the generated templates. It contains one file for each kind.
const generated = "charts/useless-operator/templates/generated"

func main() {
	if err := generate(); err != nil {
		fmt.Fprintln(os.Stderr, "error: generate the chart:", err)
		os.Exit(1)
	}
}

func generate() error {
	templates := map[string]*bytes.Buffer{}
	sources, err := sources()
	if err != nil {
		return err
	}
	for _, source := range sources {
		for _, object := range source.objects {
			text, err := template(object, append(slices.Clone(source.conditions), conditions(object)...))
			if err != nil {
				return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
			}
			file := strings.ToLower(object.GetKind()) + ".yaml"
			if templates[file] == nil {
				templates[file] = bytes.NewBufferString("{{- /* make chart generates this file from config/. */}}\n")
			}
			templates[file].WriteString(text)
		}
	}
	if err := os.RemoveAll(generated); err != nil {
		return err
	}
	if err := os.MkdirAll(generated, 0o777); err != nil {
		return err
	}
	for file, text := range templates {
		if err := os.WriteFile(filepath.Join(generated, file), text.Bytes(), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// A source is a group of objects from config/, with their common conditions. A condition is a Helm expression. The
// chart renders an object only if all its conditions are true.
type source struct {
	objects    []*unstructured.Unstructured
	conditions []string
}

// sources renders all kustomizations. The two folders in config/core contain the operator without controllers: with
// self-managed certificates, and with cert-manager. sources splits their objects into three groups: in both folders,
// only in the first, and only in the second.
func sources() ([]source, error) {
	selfManaged, err := kustomize("config/core/self-managed-certificates")
	if err != nil {
		return nil, err
	}
	certManager, err := kustomize("config/core/cert-manager")
	if err != nil {
		return nil, err
	}
	monitoring, err := kustomize("config/prometheus")
	if err != nil {
		return nil, err
	}
	dashboards, err := kustomize("config/grafana")
	if err != nil {
		return nil, err
	}
	both, onlySelfManaged := split(selfManaged, certManager)
	_, onlyCertManager := split(certManager, selfManaged)
	components, err := components()
	return append([]source{
		{objects: both},
		{onlySelfManaged, []string{`eq .Values.certificates.mode "self"`}},
		{onlyCertManager, []string{`eq .Values.certificates.mode "certManager"`}},
		{objects: monitoring},
		{dashboards, []string{".Values.dashboards.enabled"}},
	}, components...), err
}

// components renders the RBAC permissions and the admission policies of each controller, and of each kind of workload
// that the controller schedule supports.
func components() (all []source, err error) {
	const components = "config/components/"
	folders, err := filepath.Glob(components + "*/permissions")
	kinds, kindsErr := filepath.Glob(components + "schedule/*/permissions")
	if err := errors.Join(err, kindsErr); err != nil {
		return nil, err
	}
	for _, folder := range append(folders, kinds...) {
		objects, err := kustomize(folder)
		if err != nil {
			return nil, err
		}
		controller, kind, _ := strings.Cut(strings.TrimPrefix(filepath.Dir(folder), components), "/")
		conditions := []string{".Values.controllers." + controller + ".enabled"}
		if kind != "" {
			conditions = append(conditions, fmt.Sprintf("has %q .Values.schedule.kinds", kind))
		}
		all = append(all, source{objects, conditions})
	}
	return all, nil
}

// kustomize renders the kustomization in a folder. It omits the Namespace and the Deployment.
func kustomize(folder string) (objects []*unstructured.Unstructured, err error) {
	command := exec.Command("hack/tool", "kustomize", "build", folder)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w", folder, err)
	}
	for document := range strings.SplitSeq(string(out), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return nil, fmt.Errorf("kustomize build %s: %w", folder, err)
		}
		if kind := object.GetKind(); kind != "Namespace" && kind != "Deployment" {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// split returns the objects whose kind and name are in others, and the other objects.
func split(objects, others []*unstructured.Unstructured) (in, notIn []*unstructured.Unstructured) {
	for _, object := range objects {
		if slices.ContainsFunc(others, func(other *unstructured.Unstructured) bool {
			return other.GetKind() == object.GetKind() && other.GetName() == object.GetName()
		}) {
			in = append(in, object)
		} else {
			notIn = append(notIn, object)
		}
	}
	return in, notIn
}
