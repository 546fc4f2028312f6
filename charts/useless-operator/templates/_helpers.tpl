{{/* The value of the label helm.sh/chart. A label cannot contain a plus sign. */}}
{{- define "useless-operator.chart" -}}
{{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" | trunc 46 | trimSuffix "-" }}
{{- end }}

{{/* The labels and annotations of the objects of helm test. With this name, no Service selects the Pod. After a
failure, the Pod remains, so that you can read its log. Annotations are last, so that an object can add its own. */}}
{{- define "useless-operator.testMetadata" -}}
labels:
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  app.kubernetes.io/name: useless-operator-test
  helm.sh/chart: {{ include "useless-operator.chart" . }}
annotations:
  helm.sh/hook: test
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* The image with its digest or tag. */}}
{{- define "useless-operator.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The flags of the operator, as a YAML list. */}}
{{- define "useless-operator.args" -}}
{{- $values := .Values }}
- --leader-elect
- --shutdown-delay=3s
- --health-probe-bind-address=:8081
- --metrics-bind-address={{ if .Values.metrics.enabled }}:{{ .Values.metrics.port }}{{ else }}0{{ end }}
- --webhook-cert-dir=/tmp/k8s-webhook-server/serving-certs
{{- if eq .Values.certificates.mode "self" }}
- --self-managed-certs
{{- end }}
{{- range $name, $controller := .Values.controllers }}
{{- if $controller.enabled }}
- --controllers={{ $name }}
{{- end }}
{{- end }}
{{- if .Values.controllers.schedule.enabled }}
{{- range .Values.schedule.kinds }}
- --schedule-kinds={{ . }}
{{- end }}
{{- if .Values.schedule.dryRun }}
- --schedule-dry-run
{{- end }}
{{- end }}
{{- range $key, $value := .Values.ingress.annotations }}
- {{ printf "--ingress-annotation=%s=%s" $key $value | toJson }}
{{- end }}
{{- range .Values.ingress.classes }}
- --ingress-class={{ . }}
{{- end }}
{{- if ne .Values.ingress.annotationPolicy "Always" }}
- --ingress-annotation-policy={{ .Values.ingress.annotationPolicy }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Fails if values contradict each other. values.schema.json checks each value by itself. */}}
{{- define "useless-operator.validate" -}}
{{- $enabled := false }}
{{- range .Values.controllers }}
{{- $enabled = or $enabled .enabled }}
{{- end }}
{{- if not $enabled }}
{{- fail "controllers: enable at least one controller" }}
{{- end }}
{{- if and .Values.schedule.dryRun (not .Values.controllers.schedule.enabled) }}
{{- fail "schedule.dryRun has no effect: set controllers.schedule.enabled=true" }}
{{- end }}
{{- with .Values.ingress }}
{{- if and .annotations (not $.Values.controllers.ingress.enabled) }}
{{- fail "ingress.annotations has no effect: set controllers.ingress.enabled=true" }}
{{- else if and (or .classes (ne .annotationPolicy "Always")) (not .annotations) }}
{{- fail "ingress.classes and ingress.annotationPolicy have no effect without ingress.annotations" }}
{{- else if and .classes (hasKey .annotations "kubernetes.io/ingress.class") }}
{{- fail "ingress.classes cannot be used with the annotation kubernetes.io/ingress.class" }}
{{- end }}
{{- end }}
{{- if not (or .Values.crds.install .Values.crds.serveV1alpha1) }}
{{- fail "crds.serveV1alpha1 has no effect: set crds.install=true" }}
{{- else if not .Values.crds.serveV1alpha1 }}
{{- range tuple "machines" "switches" }}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (print . ".useless.container.training") }}
{{- if has "v1alpha1" (dig "status" "storedVersions" list $crd) }}
{{- fail (printf "crds.serveV1alpha1=false: %s may still be stored in v1alpha1; wait until the operator has migrated them and has removed v1alpha1 from status.storedVersions" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.certificates }}
{{- if eq .mode "secret" }}
{{- $_ := required "certificates.secretName is required if certificates.mode is secret" .secretName }}
{{- $_ = required "certificates.caBundle is required if certificates.mode is secret" .caBundle }}
{{- else if or .secretName .caBundle }}
{{- fail "certificates.secretName and certificates.caBundle have no effect: set certificates.mode=secret" }}
{{- end }}
{{- if and .issuerRef (ne .mode "certManager") }}
{{- fail "certificates.issuerRef has no effect: set certificates.mode=certManager" }}
{{- end }}
{{- end }}
{{- with .Values.metrics }}
{{- if and (or .serviceMonitor.enabled .rules.enabled $.Values.dashboards.enabled) (not .enabled) }}
{{- fail "metrics.serviceMonitor, metrics.rules and dashboards need metrics: set metrics.enabled=true" }}
{{- end }}
{{- end }}
{{- range .Values.extraArgs }}
{{- if regexMatch "^--?(controllers|schedule-kinds)(=|$)" . }}
{{- fail (printf "extraArgs: instead of %s, set controllers and schedule.kinds, because they also change the permissions" .) }}
{{- end }}
{{- if regexMatch "^--?(leader-elect|pod-uid|namespace|webhooks|webhook-.*|self-managed-certs|metrics-.*|health-probe-bind-address)(=|$)" . }}
{{- fail (printf "extraArgs: %s contradicts other objects of this chart" .) }}
{{- end }}
{{- end }}
{{- end }}
