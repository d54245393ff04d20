/*
Copyright The elasti-apiserver Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	server      = "Deployment/elasti-system/elasti-apiserver"
	resolver    = "Deployment/elasti-system/elasti-resolver"
	apiService  = "APIService/v1alpha1.elasti.truefoundry.com"
	storedKind  = "CustomResourceDefinition/storedelastiservices.storage.elasti.truefoundry.com"
	checkJob    = "Job/elasti-system/elasti-check"
	podSpec     = "spec template spec"
	container   = podSpec + " containers 0"
	podMetadata = "spec template metadata"
)

// What a value changes: at a path of an object (keys and indices, separated by spaces) is
// what is wanted, as YAML. In a list, the wanted element is one of it. "absent" means that
// nothing is there; with an empty path, that there is no such object.
var changes = []struct{ values, object, path, want string }{
	// Images.
	{"", server, container + " image", "elasti-apiserver:latest"},
	{"", resolver, container + " image", "elasti-resolver:latest"},
	{"global: {image: {registry: registry.example.com/elasti, tag: v1}}", server, container + " image", "registry.example.com/elasti/elasti-apiserver:v1"},
	{"global: {image: {registry: registry.example.com/elasti, tag: v1}}", resolver, container + " image", "registry.example.com/elasti/elasti-resolver:v1"},
	{"global: {image: {registry: registry.example.com/elasti, tag: v1}}", checkJob, container + " image", "registry.example.com/elasti/elasti-apiserver:v1"},
	{"{global: {image: {registry: a, tag: b}}, elastiController: {manager: {image: {registry: c, repository: d, tag: e}}}}", server, container + " image", "c/d:e"},
	{"{global: {image: {registry: a, tag: b}}, elastiResolver: {proxy: {image: {registry: c, repository: d, tag: e}}}}", resolver, container + " image", "c/d:e"},
	{"elastiResolver: {proxy: {image: {tag: v1, digest: 'sha256:0123456789012345678901234567890123456789012345678901234567890123'}}}", resolver, container + " image", "elasti-resolver@sha256:0123456789012345678901234567890123456789012345678901234567890123"},
	{"elastiController: {manager: {image: {digest: 'sha256:0123456789012345678901234567890123456789012345678901234567890123'}}}", checkJob, container + " image", "elasti-apiserver@sha256:0123456789012345678901234567890123456789012345678901234567890123"},
	{"elastiController: {manager: {imagePullPolicy: Always}}", server, container + " imagePullPolicy", "Always"},
	{"elastiResolver: {proxy: {imagePullPolicy: Never}}", resolver, container + " imagePullPolicy", "Never"},
	{"", server, podSpec + " imagePullSecrets", "absent"},
	{"global: {imagePullSecrets: [one, two]}", server, podSpec + " imagePullSecrets", "{name: two}"},
	{"global: {imagePullSecrets: [one, two]}", resolver, podSpec + " imagePullSecrets", "{name: one}"},
	{"global: {imagePullSecrets: [one, two]}", checkJob, podSpec + " imagePullSecrets", "{name: one}"},

	// Labels and annotations.
	{"", server, "metadata annotations", "absent"},
	{"global: {labels: {team: a}}", apiService, "metadata labels team", "a"},
	{"global: {labels: {team: a}}", "PriorityClass/elasti-critical", "metadata labels team", "a"},
	{"global: {annotations: {team: a}}", storedKind, "metadata annotations", "{team: a, helm.sh/resource-policy: keep}"},
	{"{global: {labels: {team: a}}, elastiController: {commonLabels: {team: b}, deploymentLabels: {team: c}}}", server, "metadata labels team", "c"},
	{"{global: {labels: {team: a}}, elastiController: {commonLabels: {team: b}, deploymentLabels: {team: c}}}", "Service/elasti-system/elasti-apiserver", "metadata labels team", "b"},
	{"{global: {labels: {team: a}}, elastiController: {commonLabels: {team: b}}}", "Service/elasti-system/elasti-resolver", "metadata labels team", "a"},
	{"elastiController: {commonAnnotations: {team: b}, deploymentAnnotations: {tier: c}}", server, "metadata annotations", "{team: b, tier: c}"},
	{"elastiResolver: {commonAnnotations: {team: b}, deploymentAnnotations: {tier: c}}", resolver, "metadata annotations", "{team: b, tier: c}"},
	{"elastiResolver: {commonLabels: {team: b}, deploymentLabels: {tier: c}}", resolver, "metadata labels tier", "c"},
	{"elastiResolver: {commonLabels: {team: b}}", "ClusterRole/elasti-resolver", "metadata labels team", "b"},
	{"{global: {podLabels: {team: a}}, elastiController: {podLabels: {tier: b}}}", server, podMetadata + " labels", "{app.kubernetes.io/name: elasti-apiserver, team: a, tier: b}"},
	{"{global: {podAnnotations: {team: a}}, elastiController: {podAnnotations: {tier: b}}}", server, podMetadata + " annotations", "{team: a, tier: b}"},
	{"{global: {podLabels: {team: a}}, elastiResolver: {podLabels: {tier: b}}}", resolver, podMetadata + " labels", "{app.kubernetes.io/name: elasti-resolver, team: a, tier: b}"},
	{"{global: {podAnnotations: {team: a}}, elastiResolver: {podAnnotations: {tier: b}}}", resolver, podMetadata + " annotations", "{team: a, tier: b}"},
	// The selector of a Deployment never changes.
	{"elastiResolver: {podLabels: {app.kubernetes.io/name: other}}", resolver, podMetadata + " labels", "{app.kubernetes.io/name: elasti-resolver}"},
	{"elastiController: {service: {labels: {a: b}, annotations: {c: d}}}", "Service/elasti-system/elasti-apiserver", "metadata annotations", "{c: d}"},
	{"elastiController: {service: {labels: {a: b}}}", "Service/elasti-system/elasti-apiserver", "metadata labels a", "b"},
	{"elastiResolver: {service: {labels: {a: b}}}", "Service/elasti-system/elasti-resolver", "metadata labels a", "b"},
	{"elastiResolver: {service: {annotations: {a: b}}}", "Service/elasti-system/elasti-resolver", "metadata annotations a", "b"},

	// Service accounts.
	{"elastiController: {serviceAccount: {labels: {a: b}, annotations: {c: d}}}", "ServiceAccount/elasti-system/elasti-apiserver", "metadata annotations", "{c: d}"},
	{"elastiController: {serviceAccount: {labels: {a: b}}}", "ServiceAccount/elasti-system/elasti-apiserver", "metadata labels a", "b"},
	{"elastiController: {serviceAccount: {create: false}}", "ServiceAccount/elasti-system/elasti-apiserver", "", "absent"},
	{"elastiController: {serviceAccount: {name: other}}", server, podSpec + " serviceAccountName", "other"},
	{"elastiController: {serviceAccount: {name: other}}", server, container + " env", "{name: POD_SERVICE_ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}"},
	{"elastiController: {serviceAccount: {name: other}}", "ClusterRoleBinding/elasti-apiserver", "subjects", "{kind: ServiceAccount, name: other, namespace: elasti-system}"},
	{"elastiController: {serviceAccount: {name: other}}", "ClusterRole/elasti-apiserver", "rules", "{apiGroups: [''], resources: [serviceaccounts], resourceNames: [other], verbs: [get, patch]}"},
	{"elastiController: {serviceAccount: {name: other}}", "ValidatingAdmissionPolicy/elasti-storage-writes", "spec matchConditions 0 expression", "request.userInfo.username != 'system:serviceaccount:elasti-system:other'"},
	{"elastiController: {serviceAccount: {name: other}}", "FlowSchema/elasti-storage", "spec rules 0 subjects 0 serviceAccount name", "other"},
	{"elastiController: {serviceAccount: {name: other}}", "FlowSchema/elasti-apiserver", "spec rules 0 subjects 0 serviceAccount name", "other"},
	{"elastiResolver: {serviceAccount: {name: other}}", resolver, podSpec + " serviceAccountName", "other"},
	{"elastiResolver: {serviceAccount: {name: other}}", "ClusterRoleBinding/elasti-resolver", "subjects 0 name", "other"},
	{"elastiResolver: {serviceAccount: {name: other}}", "FlowSchema/elasti-resolver-wakes", "spec rules 0 subjects 0 serviceAccount name", "other"},
	{"elastiResolver: {serviceAccount: {create: false}}", "ServiceAccount/elasti-system/elasti-resolver", "", "absent"},
	{"elastiResolver: {serviceAccount: {labels: {a: b}, annotations: {c: d}}}", "ServiceAccount/elasti-system/elasti-resolver", "metadata annotations", "{c: d}"},

	// Replicas.
	{"", server, "spec replicas", "2"},
	{"elastiController: {replicas: 3}", server, "spec replicas", "3"},
	{"{storage: {type: embedded}, elastiController: {replicas: 3}}", server, "spec replicas", "1"},
	{"{storage: {type: embedded}}", server, "spec strategy type", "Recreate"},
	{"elastiResolver: {replicas: 3}", resolver, "spec replicas", "3"},
	{"elastiResolver: {autoscaling: {enabled: true}}", resolver, "spec replicas", "absent"},
	{"elastiResolver: {autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 9}}", "HorizontalPodAutoscaler/elasti-system/elasti-resolver", "spec minReplicas", "3"},
	{"elastiResolver: {autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 9}}", "HorizontalPodAutoscaler/elasti-system/elasti-resolver", "spec maxReplicas", "9"},
	{"elastiResolver: {autoscaling: {enabled: true, targetCPUUtilizationPercentage: 50}}", "HorizontalPodAutoscaler/elasti-system/elasti-resolver", "spec metrics 0 resource target averageUtilization", "50"},
	{"", "HorizontalPodAutoscaler/elasti-system/elasti-resolver", "", "absent"},
	{"elastiController: {podDisruptionBudget: {maxUnavailable: 50%}}", "PodDisruptionBudget/elasti-system/elasti-apiserver", "spec maxUnavailable", "50%"},
	{"elastiController: {podDisruptionBudget: {enabled: false}}", "PodDisruptionBudget/elasti-system/elasti-apiserver", "", "absent"},
	{"elastiController: {podDisruptionBudget: {unhealthyPodEvictionPolicy: AlwaysAllow}}", "PodDisruptionBudget/elasti-system/elasti-apiserver", "spec unhealthyPodEvictionPolicy", "AlwaysAllow"},
	{"storage: {type: embedded}", "PodDisruptionBudget/elasti-system/elasti-apiserver", "", "absent"},
	{"elastiResolver: {podDisruptionBudget: {enabled: false}}", "PodDisruptionBudget/elasti-system/elasti-resolver", "", "absent"},
	{"elastiResolver: {podDisruptionBudget: {unhealthyPodEvictionPolicy: IfHealthyBudget}}", "PodDisruptionBudget/elasti-system/elasti-resolver", "spec unhealthyPodEvictionPolicy", "IfHealthyBudget"},
	{"elastiResolver: {podDisruptionBudget: {maxUnavailable: 2}}", "PodDisruptionBudget/elasti-system/elasti-resolver", "spec maxUnavailable", "2"},

	// Where pods run, and with what.
	{"elastiController: {nodeSelector: {disk: fast}}", server, podSpec + " nodeSelector", "{disk: fast, kubernetes.io/os: linux}"},
	{"elastiController: {tolerations: [{key: a, operator: Exists}]}", server, podSpec + " tolerations", "{key: a, operator: Exists}"},
	{"elastiController: {tolerations: [{key: a, operator: Exists}]}", checkJob, podSpec + " tolerations", "{key: a, operator: Exists}"},
	{"elastiController: {affinity: {nodeAffinity: {}}}", server, podSpec + " affinity nodeAffinity", "{}"},
	{"elastiController: {affinity: {podAntiAffinity: null}}", server, podSpec + " affinity", "absent"},
	{"", server, podSpec + " affinity podAntiAffinity", "{preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm: {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app.kubernetes.io/name: elasti-apiserver}}, matchLabelKeys: [pod-template-hash]}}]}"},
	{"", server, podSpec + " topologySpreadConstraints", "{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app.kubernetes.io/name: elasti-apiserver}}, matchLabelKeys: [pod-template-hash]}"},
	{"elastiController: {topologySpreadConstraints: [{maxSkew: 1}]}", server, podSpec + " topologySpreadConstraints", "{maxSkew: 1}"},
	{"elastiController: {terminationGracePeriodSeconds: 90}", server, podSpec + " terminationGracePeriodSeconds", "90"},
	{"elastiController: {manager: {resources: {limits: {memory: 2Gi}}, goMemoryLimit: 1900MiB}}", server, container + " resources limits memory", "2Gi"},
	{"elastiController: {manager: {goMemoryLimit: 1900MiB}}", server, container + " env", "{name: GOMEMLIMIT, value: 1900MiB}"},
	{"elastiController: {manager: {extraArgs: [--v=4]}}", server, container + " args", "'--v=4'"},
	{"elastiController: {manager: {extraEnv: [{name: A, value: b}]}}", server, container + " env", "{name: A, value: b}"},
	{"elastiController: {manager: {extraVolumeMounts: [{name: a, mountPath: /a}]}}", server, container + " volumeMounts", "{name: a, mountPath: /a}"},
	{"elastiController: {extraVolumes: [{name: a, emptyDir: {}}]}", server, podSpec + " volumes", "{name: a, emptyDir: {}}"},
	{"elastiController: {manager: {containerSecurityContext: {privileged: false}}}", server, container + " securityContext privileged", "false"},
	{"elastiController: {manager: {podSecurityContext: {runAsUser: 1000}}}", server, podSpec + " securityContext runAsUser", "1000"},
	{"elastiController: {hostUsers: false}", server, podSpec + " hostUsers", "false"},
	{"", server, podSpec + " hostUsers", "absent"},
	{"elastiResolver: {hostUsers: false}", resolver, podSpec + " hostUsers", "false"},
	{"elastiResolver: {dnsPolicy: Default}", resolver, podSpec + " dnsPolicy", "Default"},
	{"elastiResolver: {nodeSelector: {disk: fast}}", resolver, podSpec + " nodeSelector", "{disk: fast, kubernetes.io/os: linux}"},
	{"elastiResolver: {tolerations: [{key: a, operator: Exists}]}", resolver, podSpec + " tolerations", "{key: a, operator: Exists}"},
	{"elastiResolver: {affinity: {nodeAffinity: {}}}", resolver, podSpec + " affinity nodeAffinity", "{}"},
	{"", resolver, podSpec + " affinity podAntiAffinity", "{preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm: {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app.kubernetes.io/name: elasti-resolver}}, matchLabelKeys: [pod-template-hash]}}]}"},
	{"elastiResolver: {topologySpreadConstraints: []}", resolver, podSpec + " topologySpreadConstraints", "absent"},
	{"elastiResolver: {terminationGracePeriodSeconds: 90, shutdownTimeout: 30s}", resolver, podSpec + " terminationGracePeriodSeconds", "90"},
	{"elastiResolver: {terminationGracePeriodSeconds: 90, shutdownTimeout: 30s}", resolver, container + " args", "--shutdown-timeout=30s"},
	{"elastiResolver: {proxy: {resources: {limits: {memory: 2Gi}}}}", resolver, container + " resources limits memory", "2Gi"},
	{"elastiResolver: {proxy: {goMemoryLimit: 1900MiB}}", resolver, container + " env", "{name: GOMEMLIMIT, value: 1900MiB}"},
	{"elastiResolver: {proxy: {extraArgs: [--v=4]}}", resolver, container + " args", "'--v=4'"},
	{"elastiResolver: {proxy: {extraEnv: [{name: A, value: b}]}}", resolver, container + " env", "{name: A, value: b}"},
	{"elastiResolver: {proxy: {extraVolumeMounts: [{name: a, mountPath: /a}]}}", resolver, container + " volumeMounts", "{name: a, mountPath: /a}"},
	{"elastiResolver: {extraVolumes: [{name: a, emptyDir: {}}]}", resolver, podSpec + " volumes", "{name: a, emptyDir: {}}"},
	{"elastiResolver: {proxy: {containerSecurityContext: {privileged: false}}}", resolver, container + " securityContext privileged", "false"},
	{"elastiResolver: {proxy: {podSecurityContext: {runAsUser: 1000}}}", resolver, podSpec + " securityContext runAsUser", "1000"},
	{"priorityClass: {create: false, name: system-cluster-critical}", server, podSpec + " priorityClassName", "system-cluster-critical"},
	{"priorityClass: {create: false, name: system-cluster-critical}", "PriorityClass/system-cluster-critical", "", "absent"},
	{"priorityClass: {name: ''}", resolver, podSpec + " priorityClassName", "absent"},
	{"priorityClass: {value: 5}", "PriorityClass/elasti-critical", "value", "5"},

	// Flags.
	{"elastiController: {manager: {env: {pollingInterval: 10}}}", server, container + " args", "--polling-interval=10s"},
	{"elastiController: {manager: {env: {prometheusTriggerServerAddress: 'http://prometheus:9090'}}}", server, container + " args", "--prometheus-server-address=http://prometheus:9090"},
	{"elastiController: {manager: {prometheusAuthorization: {existingSecret: credential, key: token}}}", server, container + " args", "--prometheus-authorization-header-file=/etc/elasti-apiserver/prometheus/token"},
	{"elastiController: {manager: {prometheusAuthorization: {existingSecret: credential}}}", server, podSpec + " volumes", "{name: prometheus, secret: {secretName: credential}}"},
	{"elastiController: {manager: {prometheusAuthorization: {existingSecret: credential}}}", server, container + " volumeMounts", "{name: prometheus, mountPath: /etc/elasti-apiserver/prometheus, readOnly: true}"},
	{"elastiController: {manager: {prometheusAuthorization: {namespaceLabel: namespace}}}", server, container + " args", "--prometheus-namespace-label=namespace"},
	{"elastiController: {manager: {prometheusAuthorization: {namespaces: ['*']}}}", server, container + " args", "--prometheus-authorization-namespaces=*"},
	{"elastiController: {manager: {triggerAllowedServers: ['*.example.com', '10.0.0.0/8:9090']}}", server, container + " args", "--trigger-allowed-servers=*.example.com,10.0.0.0/8:9090"},
	{"allowedNamespaces: [shop, blog]", server, container + " args", "--namespaces=shop,blog"},
	{"allowedNamespaces: [shop, blog]", "ClusterRoleBinding/elasti-apiserver", "", "absent"},
	{"allowedNamespaces: [shop, blog]", "RoleBinding/blog/elasti-apiserver-targets", "roleRef", "{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: elasti-apiserver}"},
	{"elastiResolver: {proxyPorts: {first: 20000, last: 20999}}", server, container + " args", "--proxy-port-range=20000-20999"},
	{"{networkPolicy: {enabled: true}, elastiResolver: {proxyPorts: {first: 20000, last: 20999}}}", "NetworkPolicy/elasti-system/elasti-resolver", "spec ingress 0 ports", "{port: 20000, endPort: 20999}"},
	{"elastiResolver: {proxy: {accessLog: true}}", resolver, container + " args", "--access-log"},
	{"elastiResolver: {proxy: {env: {headerForHost: X-Elasti-Host}}}", resolver, container + " args", "--shared-http-host-header=X-Elasti-Host"},
	{"global: {kubernetesClusterDomain: example.internal}", resolver, container + " args", "--cluster-domain=example.internal"},

	// Storage.
	{"", server, container + " args", "--storage=cluster"},
	{"", server, podSpec + " volumes", "absent"},
	{"storage: {type: embedded}", server, container + " args", "--data-dir=/var/lib/elasti-apiserver/data"},
	{"storage: {type: embedded, embedded: {size: 5Gi, storageClassName: fast}}", "PersistentVolumeClaim/elasti-system/elasti-apiserver", "spec", "{accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 5Gi}}}"},
	{"storage: {type: embedded, embedded: {existingClaim: mine}}", "PersistentVolumeClaim/elasti-system/elasti-apiserver", "", "absent"},
	{"storage: {type: embedded, embedded: {existingClaim: mine}}", server, podSpec + " volumes", "{name: data, persistentVolumeClaim: {claimName: mine}}"},
	{"storage: {type: embedded}", storedKind, "", "absent"},
	{"storage: {type: etcd, etcd: {existingSecret: mine}}", server, podSpec + " volumes", "{name: etcd, secret: {secretName: mine}}"},
	{"storage: {type: etcd, etcd: {existingSecret: mine}}", server, container + " env", "{name: ETCD_SERVERS, valueFrom: {secretKeyRef: {name: mine, key: servers}}}"},
	{"crds: {enabled: false}", storedKind, "", "absent"},
	{"", storedKind, "metadata annotations", "{helm.sh/resource-policy: keep}"},
	{"", "ValidatingAdmissionPolicy/elasti-storage-deletion", "metadata annotations", "{helm.sh/resource-policy: keep}"},
	{"", "ValidatingAdmissionPolicyBinding/elasti-storage-deletion", "metadata annotations", "{helm.sh/resource-policy: keep}"},
	{"", "ValidatingAdmissionPolicy/elasti-storage-writes", "metadata annotations", "{helm.sh/resource-policy: keep}"},
	{"", "ValidatingAdmissionPolicyBinding/elasti-storage-writes", "metadata annotations", "{helm.sh/resource-policy: keep}"},
	{"crds: {keep: false}", "ValidatingAdmissionPolicy/elasti-storage-deletion", "metadata annotations", "absent"},
	// The policy against the deletion lets it pass with this.
	{"crds: {keep: false}", storedKind, "metadata annotations", "{storage.elasti.truefoundry.com/allow-deletion: 'true'}"},

	// Certificates.
	{"", apiService, "spec caBundle", "absent"},
	{"", apiService, "metadata annotations", "absent"},
	{"tls: {type: cert-manager}", apiService, "metadata annotations", "{cert-manager.io/inject-ca-from: elasti-system/elasti-apiserver}"},
	{"tls: {type: cert-manager}", server, container + " args", "--tls-cert-file=/etc/elasti-apiserver/serving-certificate/tls.crt"},
	{"tls: {type: cert-manager}", server, podSpec + " volumes", "{name: serving-certificate, secret: {secretName: elasti-apiserver-tls}}"},
	{"tls: {type: cert-manager}", "Certificate/elasti-system/elasti-apiserver", "spec issuerRef", "{name: elasti-apiserver-ca, kind: Issuer}"},
	{"tls: {type: cert-manager}", "Certificate/elasti-system/elasti-apiserver", "spec dnsNames", "elasti-apiserver.elasti-system.svc"},
	{"tls: {type: cert-manager}", "Certificate/elasti-system/elasti-apiserver-ca", "spec isCA", "true"},
	{"tls: {type: cert-manager, certManager: {issuerRef: {name: mine, kind: ClusterIssuer}}}", "Certificate/elasti-system/elasti-apiserver", "spec issuerRef", "{name: mine, kind: ClusterIssuer}"},
	{"tls: {type: cert-manager, certManager: {issuerRef: {name: mine, kind: ClusterIssuer}}}", "Certificate/elasti-system/elasti-apiserver-ca", "", "absent"},
	{"tls: {type: cert-manager, certManager: {duration: 48h, renewBefore: 24h}}", "Certificate/elasti-system/elasti-apiserver", "spec duration", "48h"},
	{"tls: {type: cert-manager, certManager: {duration: 48h, renewBefore: 24h}}", "Certificate/elasti-system/elasti-apiserver", "spec renewBefore", "24h"},
	// What the server does not write it need not be allowed to.
	{"tls: {type: cert-manager}", "Role/elasti-system/elasti-apiserver", "rules 1 resourceNames", "[elasti-apiserver-signing-key]"},
	{"tls: {type: existingSecret, existingSecret: {name: mine}}", server, podSpec + " volumes", "{name: serving-certificate, secret: {secretName: mine}}"},
	{"tls: {type: existingSecret, existingSecret: {name: mine}}", apiService, "spec caBundle", "absent"},
	{"tls: {type: existingSecret, existingSecret: {name: mine, caBundle: \"-----BEGIN CERTIFICATE-----\"}}", apiService, "spec caBundle", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"},
	{"apiService: {annotations: {a: b}}", apiService, "metadata annotations", "{a: b}"},
	{"apiService: {create: false}", apiService, "", "absent"},

	// Other clusters.
	{"elastiController: {hostNetwork: {enabled: true}, port: 10443}", server, podSpec + " hostNetwork", "true"},
	{"elastiController: {hostNetwork: {enabled: true}, port: 10443}", server, podSpec + " dnsPolicy", "ClusterFirstWithHostNet"},
	{"elastiController: {hostNetwork: {enabled: true}, dnsPolicy: Default}", server, podSpec + " dnsPolicy", "Default"},
	{"elastiController: {hostNetwork: {enabled: true}, port: 10443}", server, container + " args", "--secure-port=10443"},
	{"elastiController: {hostNetwork: {enabled: true}, port: 10443}", server, container + " ports", "{name: https, containerPort: 10443}"},
	// Two pods with one port do not fit on one node.
	{"elastiController: {hostNetwork: {enabled: true}}", server, "spec strategy rollingUpdate", "{maxSurge: 0, maxUnavailable: 1}"},
	{"", server, podSpec + " hostNetwork", "absent"},
	{"openshift: {enabled: true}", server, podSpec + " securityContext", "{runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}"},
	{"openshift: {enabled: true}", resolver, podSpec + " securityContext", "{runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}"},
	{"openshift: {enabled: true}", checkJob, podSpec + " securityContext", "{runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}"},
	{"openshift: {enabled: true}", "ClusterRole/elasti-apiserver", "rules", "{apiGroups: [discovery.k8s.io], resources: [endpointslices/restricted], verbs: [create]}"},

	// What can be left out.
	{"rbac: {create: false}", "ClusterRole/elasti-apiserver", "", "absent"},
	{"rbac: {create: false}", "ClusterRoleBinding/elasti-apiserver:server", "", "absent"},
	{"rbac: {create: false}", "ServiceAccount/elasti-system/elasti-apiserver", "kind", "ServiceAccount"},
	{"", "ClusterRole/elasti-view", "metadata labels rbac.authorization.k8s.io/aggregate-to-view", "'true'"},
	{"rbac: {aggregateToDefaultRoles: false}", "ClusterRole/elasti-view", "metadata labels rbac.authorization.k8s.io/aggregate-to-view", "absent"},
	{"rbac: {aggregateToDefaultRoles: false}", "ClusterRole/elasti-edit", "metadata labels rbac.authorization.k8s.io/aggregate-to-edit", "absent"},
	{"flowControl: {create: false}", "FlowSchema/elasti-apiserver", "", "absent"},
	{"flowControl: {create: false}", "FlowSchema/elasti-storage", "", "absent"},
	{"flowControl: {create: false}", "PriorityLevelConfiguration/elasti-wakes", "", "absent"},
	{"", "NetworkPolicy/elasti-system/elasti-apiserver", "", "absent"},
	{"networkPolicy: {enabled: true}", "NetworkPolicy/elasti-system/elasti-apiserver", "spec policyTypes", "[Ingress]"},
	{"networkPolicy: {enabled: true, elastiControllerEgress: [{}]}", "NetworkPolicy/elasti-system/elasti-apiserver", "spec policyTypes", "[Ingress, Egress]"},
	{"networkPolicy: {enabled: true, elastiControllerEgress: [{ports: [{port: 443}]}]}", "NetworkPolicy/elasti-system/elasti-apiserver", "spec egress", "{ports: [{port: 443}]}"},
	{"networkPolicy: {enabled: true, elastiResolverEgress: [{ports: [{port: 443}]}]}", "NetworkPolicy/elasti-system/elasti-resolver", "spec egress", "{ports: [{port: 443}]}"},
	{"networkPolicy: {enabled: true, elastiResolverEgress: [{}]}", "NetworkPolicy/elasti-system/elasti-resolver", "spec policyTypes", "[Ingress, Egress]"},
	{"", "ServiceMonitor/elasti-system/elasti-apiserver", "", "absent"},
	{"{global: {enableMonitoring: true}, elastiController: {serviceMonitor: {labels: {a: b}, interval: 5s}}}", "ServiceMonitor/elasti-system/elasti-apiserver", "metadata labels a", "b"},
	{"{global: {enableMonitoring: true}, elastiController: {serviceMonitor: {annotations: {a: b}}}}", "ServiceMonitor/elasti-system/elasti-apiserver", "metadata annotations a", "b"},
	{"{global: {enableMonitoring: true}, elastiController: {serviceMonitor: {interval: 5s}}}", "ServiceMonitor/elasti-system/elasti-apiserver", "spec endpoints 0 interval", "5s"},
	{"global: {enableMonitoring: true}", "ServiceMonitor/elasti-system/elasti-apiserver", "spec endpoints 0 tlsConfig ca secret", "{name: elasti-apiserver-serving-cert, key: ca.crt}"},
	{"global: {enableMonitoring: true}", "ServiceMonitor/elasti-system/elasti-apiserver", "spec endpoints 0 honorLabels", "true"},
	{"global: {enableMonitoring: true}", "ServiceMonitor/elasti-system/elasti-resolver", "spec endpoints 0 honorLabels", "true"},
	{"{global: {enableMonitoring: true}, tls: {type: cert-manager}}", "ServiceMonitor/elasti-system/elasti-apiserver", "spec endpoints 0 tlsConfig ca secret", "{name: elasti-apiserver-tls, key: ca.crt}"},
	{"{global: {enableMonitoring: true}, elastiResolver: {serviceMonitor: {labels: {a: b}}}}", "ServiceMonitor/elasti-system/elasti-resolver", "metadata labels a", "b"},
	{"{global: {enableMonitoring: true}, elastiResolver: {serviceMonitor: {annotations: {a: b}, interval: 5s}}}", "ServiceMonitor/elasti-system/elasti-resolver", "spec endpoints 0 interval", "5s"},
	{"global: {enableMonitoring: true}", "ServiceMonitor/elasti-system/elasti-resolver", "spec endpoints 0 bearerTokenFile", "/var/run/secrets/kubernetes.io/serviceaccount/token"},
	{"global: {enableMonitoring: true, metricsToken: {existingSecret: mine, key: other}}", "ServiceMonitor/elasti-system/elasti-resolver", "spec endpoints 0 authorization credentials", "{name: mine, key: other}"},
	{"global: {enableMonitoring: true, metricsToken: {existingSecret: mine}}", "ServiceMonitor/elasti-system/elasti-resolver", "spec endpoints 0 bearerTokenFile", "absent"},
	{"", "PodMonitor/elasti-system/elasti-apiserver", "", "absent"},
	{"", "PodMonitor/elasti-system/elasti-resolver", "", "absent"},
	{"{global: {enableMonitoring: true, metricsToken: {existingSecret: mine}}, elastiController: {podMonitor: {enabled: true}}}", "ServiceMonitor/elasti-system/elasti-apiserver", "", "absent"},
	{"{global: {enableMonitoring: true, metricsToken: {existingSecret: mine}}, elastiController: {podMonitor: {enabled: true}}}", "ServiceMonitor/elasti-system/elasti-resolver", "kind", "ServiceMonitor"},
	{"{global: {metricsToken: {existingSecret: mine}}, elastiController: {podMonitor: {enabled: true, labels: {a: b}, interval: 5s}}}", "PodMonitor/elasti-system/elasti-apiserver", "metadata labels a", "b"},
	{"{global: {metricsToken: {existingSecret: mine}}, elastiController: {podMonitor: {enabled: true, annotations: {a: b}}}}", "PodMonitor/elasti-system/elasti-apiserver", "metadata annotations a", "b"},
	{"{global: {metricsToken: {existingSecret: mine}}, elastiController: {podMonitor: {enabled: true, interval: 5s}}}", "PodMonitor/elasti-system/elasti-apiserver", "spec podMetricsEndpoints 0 interval", "5s"},
	{"{global: {metricsToken: {existingSecret: mine}}, tls: {type: cert-manager}, elastiController: {podMonitor: {enabled: true}}}", "PodMonitor/elasti-system/elasti-apiserver", "spec podMetricsEndpoints 0 tlsConfig ca secret", "{name: elasti-apiserver-tls, key: ca.crt}"},
	{"{global: {metricsToken: {existingSecret: mine}}, elastiResolver: {podMonitor: {enabled: true, labels: {a: b}}}}", "PodMonitor/elasti-system/elasti-resolver", "metadata labels a", "b"},
	{"{global: {metricsToken: {existingSecret: mine}}, elastiResolver: {podMonitor: {enabled: true, annotations: {a: b}, interval: 5s}}}", "PodMonitor/elasti-system/elasti-resolver", "spec podMetricsEndpoints 0 interval", "5s"},
	{"{global: {metricsToken: {existingSecret: mine}}, elastiResolver: {podMonitor: {enabled: true}}}", "PodMonitor/elasti-system/elasti-resolver", "spec podMetricsEndpoints 0 authorization credentials", "{name: mine, key: token}"},
	{"", checkJob, "metadata annotations helm.sh/hook", "post-install,post-upgrade,test"},
	{"check: {timeout: 10m}", checkJob, container + " args", "--timeout=10m"},
	{"check: {podLabels: {a: b}}", checkJob, podMetadata + " labels a", "b"},
	{"check: {podAnnotations: {a: b}}", checkJob, podMetadata + " annotations", "{a: b}"},
	{"check: {resources: {limits: {memory: 1Gi}}}", checkJob, container + " resources limits memory", "1Gi"},
	{"check: {enabled: false}", checkJob, "", "absent"},
	{"check: {enabled: false}", "ClusterRole/elasti-check", "", "absent"},
	{"extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}-extra'}}]", "ConfigMap/elasti-extra", "kind", "ConfigMap"},
	{"extraObjects: [\"apiVersion: v1\\nkind: ConfigMap\\nmetadata:\\n  name: text\\n\"]", "ConfigMap/text", "kind", "ConfigMap"},
}

func TestValuesChangeWhatTheySay(t *testing.T) {
	for _, change := range changes {
		o := find(renderChart(t, change.values), change.object)
		if o == nil {
			if change.path != "" || change.want != "absent" {
				t.Errorf("%s: there is no %s", change.values, change.object)
			}
			continue
		}
		if change.path == "" {
			t.Errorf("%s: there is a %s", change.values, change.object)
			continue
		}
		got := at(o, strings.Fields(change.path)...)
		if change.want == "absent" {
			if got != nil {
				t.Errorf("%s: %s of %s is %s, want none", change.values, change.path, change.object, show(got))
			}
			continue
		}
		var want any
		if err := yaml.Unmarshal([]byte(change.want), &want); err != nil {
			t.Fatalf("%s: %v", change.want, err)
		}
		list, isList := got.([]any)
		if _, wantsAll := want.([]any); isList && !wantsAll {
			if !slices.ContainsFunc(list, func(item any) bool { return reflect.DeepEqual(item, want) }) {
				t.Errorf("%s: %s of %s is %s, want %s in it", change.values, change.path, change.object, show(got), show(want))
			}
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s of %s is %s, want %s", change.values, change.path, change.object, show(got), show(want))
		}
	}
}

// Every value has a case above: one that changes nothing would be a promise without a
// test.
func TestEachValueHasACase(t *testing.T) {
	schema := schemaOf(t)
	used := map[string]bool{}
	for _, change := range changes {
		for _, path := range pathsOf("", parseValues(t, change.values)) {
			for ; path != ""; path, _, _ = cutLast(path) {
				used[path] = true
			}
		}
	}
	for _, path := range pathsOf("", defaults(t)) {
		// Fields that the schema does not have are those of Kubernetes.
		if _, known := schema[path]; known && !used[path] {
			t.Errorf("no case sets the value %s", path)
		}
	}
}

func cutLast(path string) (before, after string, found bool) {
	i := strings.LastIndex(path, ".")
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// defaults returns values.yaml.
func defaults(t *testing.T) map[string]any {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(chartDirectory, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return parseValues(t, string(content))
}

// pathsOf returns the paths of all values that have no fields.
func pathsOf(prefix string, values map[string]any) []string {
	var paths []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		path := strings.TrimPrefix(prefix+"."+key, ".")
		if fields, ok := values[key].(map[string]any); ok && len(fields) > 0 {
			paths = append(paths, pathsOf(path, fields)...)
		} else {
			paths = append(paths, path)
		}
	}
	return paths
}

// schemaOf returns the paths of values.schema.json, and whether each is closed: whether it
// rejects fields that it does not list.
func schemaOf(t *testing.T) map[string]bool {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(chartDirectory, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(content, &schema); err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	walkSchema(schema, schema, "", paths)
	return paths
}

func walkSchema(root, schema map[string]any, path string, paths map[string]bool) {
	if reference, found := schema["$ref"].(string); found {
		definitions := root["definitions"].(map[string]any)
		schema = definitions[strings.TrimPrefix(reference, "#/definitions/")].(map[string]any)
	}
	if path != "" {
		paths[path] = schema["additionalProperties"] == false
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		walkSchema(root, property.(map[string]any), strings.TrimPrefix(path+"."+name, "."), paths)
	}
}

func TestSchemaKnowsEachValueAndNoOther(t *testing.T) {
	schema := schemaOf(t)
	known := map[string]bool{}
	for _, path := range pathsOf("", defaults(t)) {
		for ; path != ""; path, _, _ = cutLast(path) {
			known[path] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(schema)) {
		// An empty value does not show its fields.
		if parent, _, _ := cutLast(path); !known[path] && len(fieldsAt(defaults(t), parent)) > 0 {
			t.Errorf("the schema has %s, values.yaml does not", path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(known)) {
		parent, _, found := cutLast(path)
		if _, inSchema := schema[path]; !inSchema && (!found || schema[parent]) {
			t.Errorf("values.yaml has %s, the schema does not", path)
		}
	}
}

// fieldsAt returns the fields of a value at a path with dots.
func fieldsAt(values map[string]any, path string) map[string]any {
	if path == "" {
		return values
	}
	fields, _ := at(object(values), strings.Split(path, ".")...).(map[string]any)
	return fields
}

// rejected are values, and what is said about them.
var rejected = []struct{ values, want string }{
	{"replicaCount: 3", "replicaCount"},
	{"elastiController: {replica: 3}", "replica"},
	{"elastiController: {manager: {image: {repo: a}}}", "repo"},
	{"elastiController: {manager: {sentry: {enabled: true}}}", "sentry"},
	{"storage: {type: mongo}", "storage"},
	{"tls: {type: none}", "tls"},
	{"tls: {type: existingSecret}", "tls.existingSecret.name is empty"},
	{"tls: {existingSecret: {caBundle: LS0t}}", "caBundle"},
	{"elastiController: {port: 443}", "port"},
	{"elastiController: {manager: {extraArgs: [v=4]}}", "extraArgs"},
	{"elastiController: {manager: {env: {prometheusTriggerServerAddress: 'prometheus:9090'}}}", "prometheusTriggerServerAddress"},
	{"elastiResolver: {proxy: {image: {digest: v1}}}", "digest"},
	{"allowedNamespaces: [Shop]", "allowedNamespaces"},
	{"global: {imagePullSecrets: [{name: a}]}", "imagePullSecrets"},
	{"check: {timeout: 3}", "timeout"},
	{"elastiController: {podMonitor: {enabled: true}}", "global.metricsToken.existingSecret is empty"},
	{"global: {metricsToken: {existing: a}}", "existing"},
}

func TestWrongValuesAreRejected(t *testing.T) {
	for _, version := range slices.Sorted(maps.Keys(helmVersions)) {
		for _, each := range rejected {
			_, err := helmVersions[version](parseValues(t, each.values))
			if err == nil || !strings.Contains(err.Error(), each.want) {
				t.Errorf("%s: %s: got %v, want an error about %s", version, each.values, err, each.want)
			}
		}
	}
}

// A chart that has this one as a dependency shares its global values.
func TestFurtherGlobalValuesAreAccepted(t *testing.T) {
	for version, render := range helmVersions {
		if _, err := render(parseValues(t, "global: {storageClass: fast}")); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}
