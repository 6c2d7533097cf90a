{{- /*
What the operator may do in a namespace that it serves, and all that it may do.
Server-side apply is `patch`, and `create` as well when the object is not there yet. Nothing is replaced, so there is no `update`.
The role that it writes for a worker lets it read one ConfigMap. The API server lets nobody grant what he does not hold; the operator
holds these for ConfigMaps itself, so it needs neither `escalate` nor `bind`.
*/}}
{{- define "tailkeeper.rules" -}}
- apiGroups: [tailkeeper.dev]
  resources: [batchingpolicies]
  verbs: [get, list, watch]
- apiGroups: [tailkeeper.dev]
  resources: [batchingpolicies/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# An annotation makes the kubelet refresh a mounted settings file at once.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}
