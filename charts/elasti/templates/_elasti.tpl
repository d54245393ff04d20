{{/*
The labels and annotations of an object. Its argument is a dictionary with the root of
the values, and lists of dictionaries of further labels and annotations, of which a
later one overrides an earlier one:

  {{- include "elasti.metadata" (dict "root" $ "labels" (list …) "annotations" (list …)) | nindent 2 }}

Annotations are left out when there are none: an empty field would differ from what the
cluster stores.
*/}}
{{- define "elasti.metadata" -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- $labels := dict "app.kubernetes.io/part-of" "elasti" "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/managed-by" .root.Release.Service "helm.sh/chart" $chart -}}
labels:
  {{- include "elasti.merge" (concat (list $labels .root.Values.global.labels) (.labels | default list)) | nindent 2 }}
{{- with include "elasti.merge" (concat (list .root.Values.global.annotations) (.annotations | default list)) }}
annotations:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The labels and annotations of an object of elasti-apiserver. */}}
{{- define "elasti.apiserverMetadata" -}}
{{- include "elasti.metadata" (dict "root" . "labels" (list .Values.elastiController.commonLabels) "annotations" (list .Values.elastiController.commonAnnotations)) -}}
{{- end }}

{{/* The labels and annotations of an object of elasti-resolver. */}}
{{- define "elasti.resolverMetadata" -}}
{{- include "elasti.metadata" (dict "root" . "labels" (list .Values.elastiResolver.commonLabels) "annotations" (list .Values.elastiResolver.commonAnnotations)) -}}
{{- end }}

{{/*
The entries of a list of dictionaries as YAML, or nothing when there are none. A later
one overrides an earlier one.
*/}}
{{- define "elasti.merge" -}}
{{- $merged := dict -}}
{{- range . -}}
{{- $merged = merge (deepCopy (. | default dict)) $merged -}}
{{- end -}}
{{- if $merged -}}
{{- toYaml $merged -}}
{{- end -}}
{{- end }}

{{/*
The name of an image. Its argument is a dictionary with the root of the values and the
image. A digest says more than a tag, which is left out then.
*/}}
{{- define "elasti.image" -}}
{{- $registry := .image.registry | default .root.Values.global.image.registry -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest -}}
@{{ .image.digest }}
{{- else -}}
:{{ .image.tag | default .root.Values.global.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/*
A security context. On OpenShift, users and groups are those of the namespace's range:
what is fixed is left out. Its argument is a dictionary with the root of the values and
the context.
*/}}
{{- define "elasti.securityContext" -}}
{{- if .root.Values.openshift.enabled -}}
{{- toYaml (omit .context "runAsUser" "runAsGroup" "fsGroup" "fsGroupChangePolicy" "supplementalGroups") -}}
{{- else -}}
{{- toYaml .context -}}
{{- end -}}
{{- end }}

{{/*
Where the pods of a component run: the fields of the pod that are the same in both.
Its argument is a dictionary with the root of the values and the component's values.
*/}}
{{- define "elasti.placement" -}}
enableServiceLinks: false
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .root.Values.priorityClass.name }}
priorityClassName: {{ . }}
{{- end }}
{{- with .component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .component.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if not (kindIs "invalid" .component.hostUsers) }}
hostUsers: {{ .component.hostUsers }}
{{- end }}
{{- end }}

{{/* The Secret with the serving certificate, when the server does not make it itself. */}}
{{- define "elasti.servingCertificateSecret" -}}
{{- if eq .Values.tls.type "cert-manager" -}}
elasti-apiserver-tls
{{- else -}}
{{- required "tls.existingSecret.name is empty: give the name of the Secret of type kubernetes.io/tls with the serving certificate" .Values.tls.existingSecret.name -}}
{{- end -}}
{{- end }}

{{/*
How Prometheus authenticates to a component, unless with the token of its pod, which only
a ServiceMonitor can name.
*/}}
{{- define "elasti.metricsToken" -}}
{{- $token := .Values.global.metricsToken -}}
authorization:
  credentials:
    name: {{ required "global.metricsToken.existingSecret is empty: give the name of the Secret with the token of Prometheus, which a PodMonitor needs" $token.existingSecret }}
    key: {{ $token.key }}
{{- end }}

{{/* The ports of the resolvers that are given to ports of Services, as elasti-apiserver takes them. */}}
{{- define "elasti.proxyPortRange" -}}
{{- printf "%d-%d" (int .Values.elastiResolver.proxyPorts.first) (int .Values.elastiResolver.proxyPorts.last) -}}
{{- end }}
