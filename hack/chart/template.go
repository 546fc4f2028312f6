// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// conditions returns the conditions that follow from the kind or the name of an object. They apply in addition to the
// conditions of its source.
func conditions(object *unstructured.Unstructured) []string {
	switch kind := object.GetKind(); {
	case kind == "CustomResourceDefinition":
		return []string{".Values.crds.install"}
	case strings.HasPrefix(kind, "ValidatingAdmissionPolicy"): // also the kind of the bindings
		return []string{".Values.admissionPolicies.enabled"}
	case kind == "FlowSchema":
		return []string{".Values.flowControl.enabled"}
	case kind == "Issuer":
		return []string{"not .Values.certificates.issuerRef"}
	case kind == "NetworkPolicy":
		return []string{".Values.networkPolicy.enabled"}
	case kind == "PodDisruptionBudget": // with one replica, it would block the drain of a node
		return []string{"gt (int .Values.replicas) 1"}
	case kind == "PrometheusRule":
		return []string{".Values.metrics.rules.enabled"}
	case kind == "ServiceMonitor":
		return []string{".Values.metrics.serviceMonitor.enabled"}
	case strings.Contains(object.GetName(), "metrics"):
		return []string{".Values.metrics.enabled"}
	}
	return nil
}

// An edit replaces each part of an object's YAML text that matches a pattern. The replacement contains template code.
// The keys in the YAML text are sorted, so a pattern can rely on their order.
type edit struct {
	part        *regexp.Regexp
	replacement string
}

// edits lists the edits of each kind.
var edits = map[string][]edit{
	"CustomResourceDefinition": {
		{regexp.MustCompile(`(?m)^  annotations:\n`), "${0}" +
			when("crds.keep", "    helm.sh/resource-policy: keep\n")},
		// VirtualMachines do not match, because their v1alpha1 is stored.
		{regexp.MustCompile(`(?m)^    name: v1alpha1\n((?s:.*?)\n)    served: true\n    storage: false\n`),
			"    name: v1alpha1\n${1}    served: {{ .Values.crds.serveV1alpha1 }}\n    storage: false\n"},
		{regexp.MustCompile(`(?m)^  annotations:\n((?s:.*)\n +clientConfig:\n)`), "  annotations:\n" + injection + "${1}"},
		caBundle,
	},
	"ValidatingWebhookConfiguration": {
		{regexp.MustCompile(`(?m)^metadata:\n`), "${0}" +
			when(`certificates.mode | eq "certManager"`, "  annotations:\n    "+inject)},
		caBundle,
	},
	"Certificate": {{regexp.MustCompile(`(?m)^  issuerRef:\n((?:    .*\n)+)`), "  issuerRef:\n" +
		"    {{- with .Values.certificates.issuerRef }}\n    {{- toYaml . | nindent 4 }}\n" +
		"    {{- else }}\n${1}    {{- end }}\n"}},
	"NetworkPolicy": {
		{regexp.MustCompile(`(?m)^  - from:\n(?s:.*?)    - port: 8443\n.*\n`), when("metrics.enabled", "${0}")},
		metricsPort,
	},
	"Service": {metricsPort},
	"ServiceMonitor": {
		moreLabels("metrics.serviceMonitor"),
		// In the mode secret, the user's Secret need not contain the CA certificate. templates/metrics_ca.yaml creates
		// a ConfigMap with this certificate.
		{regexp.MustCompile(`(?m)^        secret:\n((?:          .*\n)+)`), "        {{- if eq .Values.certificates.mode \"secret\" }}\n" +
			"        configMap:\n          key: ca.crt\n          name: useless-metrics-ca\n" +
			"        {{- else }}\n${0}        {{- end }}\n"},
	},
	"PrometheusRule": {moreLabels("metrics.rules")},
	"ConfigMap":      {moreLabels("dashboards")},
}

const inject = "cert-manager.io/inject-ca-from: useless-system/useless-serving-cert\n"

var (
	// injection is an annotation for the mode certManager. cert-manager writes the CA certificate into each object that
	// has this annotation.
	injection = when(`certificates.mode | eq "certManager"`, "    "+inject)

	// caBundle adds the user's CA certificate to the configuration of each webhook, in the mode secret.
	caBundle = edit{regexp.MustCompile(`(?m)^( +)service:\n +name: `), when(`certificates.mode | eq "secret"`,
		"${1}caBundle: {{ .Values.certificates.caBundle | b64enc }}\n") + "${0}"}

	metricsPort = edit{regexp.MustCompile(`port: 8443`), "port: {{ .Values.metrics.port }}"}
)

// when returns lines that the chart renders only if a value is true.
func when(value, lines string) string {
	return "{{- if .Values." + value + " }}\n" + lines + "{{- end }}\n"
}

// moreLabels returns an edit that adds the labels in the chart's value VALUE.labels, where VALUE is the argument.
func moreLabels(value string) edit {
	return edit{regexp.MustCompile(`(?m)^  labels:\n`), "${0}    {{- with .Values." + value + ".labels }}\n" +
		"    {{- toYaml . | nindent 4 }}\n    {{- end }}\n"}
}

// template returns the Helm template of an object. The chart renders the object only if all conditions are true.
func template(object *unstructured.Unstructured, conditions []string) (string, error) {
	labels := object.GetLabels()
	labels["app.kubernetes.io/managed-by"] = "RELEASE-SERVICE"
	labels["helm.sh/chart"] = "CHART"
	object.SetLabels(labels)
	raw, err := yaml.Marshal(object.Object)
	if err != nil {
		return "", err
	}
	// The objects contain braces of their own, for example in the text of an alert.
	text := strings.ReplaceAll(string(raw), "{{", `{{ "{{" }}`)
	for _, edit := range edits[object.GetKind()] {
		text = edit.part.ReplaceAllString(text, edit.replacement)
	}
	text = strings.NewReplacer(
		"RELEASE-SERVICE", "{{ .Release.Service }}", "CHART", `{{ include "useless-operator.chart" . }}`,
		"namespace: useless-system\n", "namespace: {{ .Release.Namespace | quote }}\n", // a namespace can be a number
		"- useless-system\n", "- {{ .Release.Namespace | quote }}\n",
		"useless-system", "{{ .Release.Namespace }}",
	).Replace(text)
	if len(conditions) == 0 {
		return "---\n" + text, nil
	}
	return fmt.Sprintf("{{- if %s }}\n---\n%s{{- end }}\n", conjunction(conditions), text), nil
}

// conjunction returns a condition that is true if all conditions are true.
func conjunction(conditions []string) string {
	if len(conditions) == 1 {
		return conditions[0]
	}
	return "and (" + strings.Join(conditions, ") (") + ")"
}
