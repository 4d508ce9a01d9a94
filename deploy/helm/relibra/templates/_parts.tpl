{{- /* Parts that several pods share. */ -}}

{{- define "relibra.pod" -}}
serviceAccountName: relibra
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  # Without this, mounted secrets would be readable by root only.
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "relibra.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: { app.kubernetes.io/name: {{ . }} }
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: { app.kubernetes.io/name: {{ . }} }
{{- end -}}

{{- define "relibra.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end -}}

{{- define "relibra.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "relibra.settings" -}}
{{- range $name, $value := .Values.settings }}
- { name: RELIBRA_{{ $name }}, value: {{ $value | quote }} }
{{- end }}
{{- if .Values.auth }}
- { name: RELIBRA_AUTH, value: required }
{{- else }}
- { name: RELIBRA_INSECURE, value: "true" }
{{- end }}
{{- if not .Values.redis.inCluster.enabled }}
- name: RELIBRA_REDIS_URL
  valueFrom:
    secretKeyRef: { name: {{ .Values.redis.secretName }}, key: url }
{{- else }}
- { name: RELIBRA_REDIS_URL, value: "redis://redis:6379/0" }
{{- if .Values.redis.secretName }}
- { name: RELIBRA_REDIS_PASSWORD_FILE, value: /etc/relibra/redis/password }
{{- end }}
{{- end }}
{{- end -}}

{{- define "relibra.redisVolume" -}}
- name: redis
  {{- if and .Values.redis.inCluster.enabled .Values.redis.secretName }}
  secret: { secretName: {{ .Values.redis.secretName }}, defaultMode: 0440, items: [{ key: password, path: password }] }
  {{- else }}
  # The CA of Redis, if it has one of its own.
  secret: { secretName: {{ .Values.redis.caSecretName }}, defaultMode: 0440, optional: true, items: [{ key: ca.crt, path: ca.crt }] }
  {{- end }}
{{- end -}}
