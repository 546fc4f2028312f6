{{- define "gvList" -}}
<!-- make api-docs writes this page from the comments in api. -->

# API

This page lists all fields, as `kubectl explain` does. [reference.md](reference.md) and
[virtualmachine.md](virtualmachine.md) explain how to use them. The first of these pages also
says [where the fields of Machines are](reference.md#a-machine-in-both-versions) in the deprecated version v1alpha1.
{{ range . }}
{{ template "group" . }}
{{- end }}
{{- end -}}

{{- define "group" -}}
## {{ .GroupVersionString }}
{{ range .SortedTypes }}{{ if .GVK }}{{ template "type" . }}{{ end }}{{ end }}
{{- range .SortedTypes }}{{ if not .GVK }}{{ template "type" . }}{{ end }}{{ end }}
{{- end -}}

{{- define "type" }}
### {{ .Name }}

{{ .Doc }}
{{ if .Members }}
| field | type | default | meaning |
|---|---|---|---|
{{ range .Members }}{{ template "field" . }}{{ end -}}
{{ end }}
{{- if .EnumValues }}
{{ range .EnumValues -}}
- {{ regexReplaceAll "^\\w+" .Doc (printf "`%s`" .Name) | replace "\n" " " | trim }}
{{ end -}}
{{ end -}}
{{- end -}}

{{- /* crd-ref-docs links the types of Kubernetes to a page of each release. Only their names are useful. */ -}}
{{- define "field" -}}
| `{{ .Name }}` | {{ regexReplaceAll "\\[(\\w+)\\]\\(https:[^)]*\\)" (markdownRenderType .Type) "${1}" }} | {{ if has "Required: {}" .Validation }}required
{{- else if not (contains "{" .Default) }}{{ .Default }}{{ end }} | {{ .Doc | replace "\n" " " | replace "|" "\\|" }} |
{{ end -}}
