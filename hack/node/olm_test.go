// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRenderOLM renders a chart that uses every feature of OLM's chart.
func TestRenderOLM(t *testing.T) {
	deploy := t.TempDir()
	for name, text := range map[string]string{
		"chart/values.yaml":    "{installType: upstream, minKubeVersion: 1.11.0, port: 53, olm: {image: {ref: old}, resources: {cpu: 10m}}}",
		"upstream/values.yaml": "{minKubeVersion: 1.30.0, olm: {replicaCount: 1}}",
		"chart/crds/crd.yaml":  "kind: CustomResourceDefinition",
		"chart/templates/_part.yaml": `{{- define "part" -}}
version: {{ .Chart.Version }}
since: {{ .Values.minKubeVersion }}
{{- end -}}`,
		"chart/templates/_helpers.tpl": `{{- define "name" -}}{{ default .Chart.Name .Values.name | trunc 63 | trimSuffix "-" }}{{- end -}}`,
		"chart/templates/one.yaml": `spec:
  part: {{ include "part" . | nindent 4 }}
  port: {{ .Values.port | quote }}
  image: {{ .Values.olm.image.ref }}
  resources:
{{ toYaml .Values.olm.resources | indent 4 }}
  replicas: {{ .Values.olm.replicaCount }}`,
		"chart/templates/two.yaml": `{{- if and .Values.installType (eq .Values.installType "upstream") -}}
kind: CatalogSource
{{- end }}`,
	} {
		path := filepath.Join(deploy, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := renderOLM(deploy, map[string]string{"olm": "v0.40.0", "opm": "v1.65.0"})
	if err != nil {
		t.Fatal(err)
	}
	want := `---
kind: CustomResourceDefinition
---
spec:
  part: 
    version: 0.40.0
    since: 1.30.0
  port: "53"
  image: quay.io/operator-framework/olm:v0.40.0
  resources:
    cpu: 10m
  replicas: 1
---

`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}

	broken := filepath.Join(deploy, "chart", "templates", "three.yaml")
	if err := os.WriteFile(broken, []byte(`{{ lookup "v1" "Secret" }}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := renderOLM(deploy, nil); err == nil || !strings.Contains(err.Error(), `function "lookup" not defined`) {
		t.Errorf("a chart with an unsupported function: error %v", err)
	}
}
