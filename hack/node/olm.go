// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"container.training/useless/hack/cluster"
)

// olmManifests is the file with the manifests of OLM.
const olmManifests = "olm.yaml"

// olmSource is the name of OLM's .mod file in hack/tools, without .mod.
const olmSource = "olm"

// olmNamespace is the namespace of OLM.
const olmNamespace = "olm"

// olmTimeout limits the wait for OLM's package server. It is long enough for a busy computer.
const olmTimeout = 3 * time.Minute

// values are the values of a Helm chart.
type values = map[string]any

// writeOLM renders the Helm chart in OLM's source, with its CRDs, and writes the result to the file path.
func writeOLM(ctx context.Context, path string) error {
	versions, err := imageVersions()
	if err != nil {
		return err
	}
	source, err := cluster.Source(ctx, olmSource)
	if err != nil {
		return err
	}
	text, err := renderOLM(filepath.Join(source, "deploy"), versions)
	if err != nil {
		return fmt.Errorf("render the chart of OLM %s: %w", versions["olm"], err)
	}
	return os.WriteFile(path, text, 0o644)
}

func renderOLM(deploy string, versions map[string]string) ([]byte, error) {
	image := func(more values) values {
		more["image"] = values{"ref": "quay.io/operator-framework/olm:" + versions["olm"], "pullPolicy": "IfNotPresent"}
		return more
	}
	merged := values{}
	for _, file := range []string{"chart/values.yaml", "upstream/values.yaml"} {
		more, err := readValues(filepath.Join(deploy, file))
		if err != nil {
			return nil, err
		}
		merge(merged, more)
	}
	merge(merged, values{
		"installType": "", // "upstream" would add a catalog on the internet
		"olm":         image(values{}),
		"catalog":     image(values{"opmImageArgs": "--opmImage=quay.io/operator-framework/opm:" + versions["opm"]}),
		"package":     image(values{"replicaCount": 1}),
	})

	var text bytes.Buffer
	crds, err := filepath.Glob(filepath.Join(deploy, "chart", "crds", "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range crds {
		crd, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "---\n%s\n", crd)
	}
	data := values{"Values": merged, "Chart": values{"Version": strings.TrimPrefix(versions["olm"], "v")}}
	if err := renderChart(&text, filepath.Join(deploy, "chart", "templates"), data); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

func readValues(file string) (read values, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return read, yaml.Unmarshal(text, &read)
}

// merge applies changes to values as Helm does: it merges objects and replaces other values.
func merge(into, changes values) {
	for key, value := range changes {
		before, ok1 := into[key].(values)
		change, ok2 := value.(values)
		if ok1 && ok2 {
			merge(before, change)
		} else {
			into[key] = value
		}
	}
}

// renderChart renders the templates of a chart. It supports only the Helm functions that OLM's chart uses. It fails if
// a template uses another function.
func renderChart(w io.Writer, dir string, data any) error {
	chart := template.New("chart")
	chart.Funcs(template.FuncMap{
		"default": func(preset string, value any) any { return cmp.Or(value, any(preset)) },
		"include": func(name string, data any) (string, error) {
			var text strings.Builder
			err := chart.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
		"indent":  indent,
		"nindent": func(spaces int, text string) string { return "\n" + indent(spaces, text) },
		"quote":   func(value any) string { return strconv.Quote(fmt.Sprint(value)) },
		"toYaml": func(value any) (string, error) {
			text, err := yaml.Marshal(value)
			return strings.TrimSuffix(string(text), "\n"), err
		},
		"trimSuffix": func(suffix, text string) string { return strings.TrimSuffix(text, suffix) },
		"trunc":      func(length int, text string) string { return text[:min(length, len(text))] },
	})
	if _, err := chart.ParseGlob(filepath.Join(dir, "*")); err != nil {
		return err
	}
	for _, t := range slices.SortedFunc(slices.Values(chart.Templates()), func(a, b *template.Template) int {
		return cmp.Compare(a.Name(), b.Name())
	}) {
		if !strings.HasSuffix(t.Name(), ".yaml") || strings.HasPrefix(t.Name(), "_") {
			continue
		}
		fmt.Fprintln(w, "---")
		if err := t.Execute(w, data); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return nil
}

func indent(spaces int, text string) string {
	prefix := strings.Repeat(" ", spaces)
	return prefix + strings.ReplaceAll(text, "\n", "\n"+prefix)
}

// installOLM applies OLM and waits until OLM has installed its package server, which is the last part.
func installOLM(ctx context.Context, n *node, config *rest.Config, reportReady func(string)) error {
	objects, err := cluster.ReadManifests(n.path(olmManifests))
	if err != nil {
		return err
	}
	if err := cluster.Install(ctx, config, objects, cluster.WebhookServer{}); err != nil {
		return err
	}
	reportReady("OLM's manifests")
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	packageServer := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "operators.coreos.com/v1alpha1", "kind": "ClusterServiceVersion",
		"metadata": map[string]any{"namespace": olmNamespace, "name": "packageserver"},
	}}
	var phase, message string
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, olmTimeout, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(packageServer), packageServer); err != nil {
			return false, err
		}
		phase, _, _ = unstructured.NestedString(packageServer.Object, "status", "phase")
		message, _, _ = unstructured.NestedString(packageServer.Object, "status", "message")
		return phase == "Succeeded", nil
	})
	if err != nil {
		return fmt.Errorf("wait for OLM's package server (phase %q: %s): %w", phase, message, err)
	}
	reportReady("OLM's package server")
	return nil
}
