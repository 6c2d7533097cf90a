{{- define "tailkeeper.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tailkeeper.fullname" -}}
{{- $name := include "tailkeeper.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tailkeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tailkeeper.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "tailkeeper.testLabels" -}}
app.kubernetes.io/name: {{ include "tailkeeper.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: test
{{- end }}

{{- define "tailkeeper.releaseLabels" -}}
app.kubernetes.io/part-of: tailkeeper
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Labels of an object: `identity` names the ones that selectors go by, `labels` and commonLabels add to ours and override none. */}}
{{- define "tailkeeper.labelsWith" -}}
{{- $own := include .identity .root | fromYaml }}
{{- toYaml (merge $own (include "tailkeeper.releaseLabels" .root | fromYaml) .labels .root.Values.commonLabels) }}
{{- end }}

{{- define "tailkeeper.labels" -}}
{{- include "tailkeeper.labelsWith" (dict "root" . "identity" "tailkeeper.selectorLabels" "labels" dict) }}
{{- end }}

{{- define "tailkeeper.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tailkeeper.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* Reference of an image; takes a dict of `image` (repository, tag, digest) and `default` (the tag where none is given). */}}
{{- define "tailkeeper.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository (default .default .image.tag) }}
{{- end }}
{{- end }}

{{- /* The overlay of every worker pod: the pull secrets, and the template on top of them. */}}
{{- define "tailkeeper.workerTemplate" -}}
{{- $overlay := deepCopy .Values.workers.template }}
{{- with .Values.workers.imagePullSecrets }}
{{- $overlay = merge $overlay (dict "spec" (dict "imagePullSecrets" .)) }}
{{- end }}
{{- toYaml $overlay }}
{{- end }}
