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

package compatibility

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Annotations of Services that say how a load balancer reaches the pods.
const (
	awsTargetType    = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"
	awsLegacyType    = "service.beta.kubernetes.io/aws-load-balancer-type"
	awsIngressTarget = "alb.ingress.kubernetes.io/target-type"
	googleNEG        = "cloud.google.com/neg"
)

// ServiceAnnotations returns the keys of the annotations that OfService reads.
func ServiceAnnotations() []string {
	return []string{awsTargetType, awsLegacyType, awsIngressTarget, googleNEG}
}

// OfService returns the findings about a public Service. always is true when
// resolvers stay in the path while the target is awake. Of the Service it reads
// the name, the spec and the annotations of ServiceAnnotations.
func OfService(service *corev1.Service, always bool) []Finding {
	var findings []Finding
	add := func(reason, problem string) {
		findings = append(findings, Finding{
			Condition: v1alpha1.ConditionServiceCompatible,
			Reason:    reason,
			Message:   fmt.Sprintf("Service %q %s", service.Name, problem),
		})
	}
	spec := &service.Spec
	if spec.PublishNotReadyAddresses {
		add(v1alpha1.ReasonPublishesNotReadyAddresses, "has publishNotReadyAddresses: while the target wakes, new connections also go to pods that do not accept them yet, and fail; set it to false")
	}
	if local := corev1.ServiceInternalTrafficPolicyLocal; spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == local {
		add(v1alpha1.ReasonInternalTrafficPolicyLocal, "has internalTrafficPolicy Local: clients on nodes without a resolver cannot connect while the target sleeps; use Cluster, or run a resolver on every node")
	}
	if spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		add(v1alpha1.ReasonExternalTrafficPolicyLocal, "has externalTrafficPolicy Local: nodes without a resolver drop traffic from outside of the cluster while the target sleeps; use Cluster, or run a resolver on every node")
	}
	if annotation := podTargeting(service); annotation != "" {
		add(v1alpha1.ReasonLoadBalancerTargetsPods, fmt.Sprintf("has a load balancer that sends to pods (annotation %s): it has nowhere to send to while the target sleeps; have it send to nodes, or to an ingress controller in the cluster", annotation))
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		add(v1alpha1.ReasonSessionAffinity, "has sessionAffinity ClientIP: connections of one client that pass through a resolver may go to different pods; this is of no consequence for a target of one replica, or without state of sessions in its pods")
	}
	if always && spec.TrafficDistribution != nil {
		add(v1alpha1.ReasonTrafficDistribution, fmt.Sprintf("has trafficDistribution %s, which has no effect while resolvers are in the path: with spec.proxy.policy %s that is at all times; use %s", *spec.TrafficDistribution, v1alpha1.ProxyAlways, v1alpha1.ProxyWhenAsleep))
	}
	return findings
}

// podTargeting returns the key of the annotation that has a load balancer send
// to pods without the nodes in between, or an empty string. Such load balancers
// take only pods that the selector of the Service matches.
func podTargeting(service *corev1.Service) string {
	annotations := service.Annotations
	switch {
	case annotations[awsTargetType] == "ip":
		return awsTargetType
	case annotations[awsLegacyType] == "nlb-ip":
		return awsLegacyType
	case annotations[awsIngressTarget] == "ip":
		return awsIngressTarget
	case isNEG(annotations[googleNEG]):
		return googleNEG
	default:
		return ""
	}
}

// isNEG reports whether the value of the annotation enables network endpoint
// groups, which consist of pods.
func isNEG(value string) bool {
	var groups struct {
		Ingress      bool                       `json:"ingress"`
		ExposedPorts map[string]json.RawMessage `json:"exposed_ports"`
	}
	if json.Unmarshal([]byte(value), &groups) != nil {
		return false
	}
	return groups.Ingress || len(groups.ExposedPorts) > 0
}
