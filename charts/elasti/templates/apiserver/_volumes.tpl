{{/* Where elasti-apiserver finds its data, certificates and credentials. */}}
{{- define "elasti.apiserverVolumeMounts" -}}
{{- if eq .Values.storage.type "embedded" }}
- name: data
  mountPath: /var/lib/elasti-apiserver
{{- else if eq .Values.storage.type "etcd" }}
- name: etcd
  mountPath: /etc/elasti-apiserver/etcd
  readOnly: true
{{- end }}
{{- if ne .Values.tls.type "self" }}
- name: serving-certificate
  mountPath: /etc/elasti-apiserver/serving-certificate
  readOnly: true
{{- end }}
{{- if .Values.elastiController.manager.prometheusAuthorization.existingSecret }}
- name: prometheus
  mountPath: /etc/elasti-apiserver/prometheus
  readOnly: true
{{- end }}
{{- with .Values.elastiController.manager.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The volumes of these. */}}
{{- define "elasti.apiserverVolumes" -}}
{{- if eq .Values.storage.type "embedded" }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.storage.embedded.existingClaim | default "elasti-apiserver" }}
{{- else if eq .Values.storage.type "etcd" }}
- name: etcd
  secret:
    secretName: {{ .Values.storage.etcd.existingSecret }}
{{- end }}
{{- if ne .Values.tls.type "self" }}
- name: serving-certificate
  secret:
    secretName: {{ include "elasti.servingCertificateSecret" . }}
{{- end }}
{{- with .Values.elastiController.manager.prometheusAuthorization.existingSecret }}
- name: prometheus
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.elastiController.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
