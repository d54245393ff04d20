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
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// reasons returns the reasons of findings, and checks that each can be shown.
func reasons(t *testing.T, findings []Finding, conditionType, object string) []string {
	t.Helper()
	var found []string
	for _, finding := range findings {
		found = append(found, finding.Reason)
		if finding.Condition != conditionType {
			t.Errorf("%s is reported in %s, want %s", finding.Reason, finding.Condition, conditionType)
		}
		if !strings.HasPrefix(finding.Message, object+" ") {
			t.Errorf("%s does not begin with the object: %q", finding.Reason, finding.Message)
		}
	}
	return found
}

func TestServiceFindings(t *testing.T) {
	annotated := func(key, value string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: value}}}
	}
	local, cluster := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster
	for _, test := range []struct {
		name    string
		service corev1.Service
		always  bool
		want    []string
	}{
		{"plain", corev1.Service{Spec: corev1.ServiceSpec{
			SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: &cluster, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		}}, true, nil},
		{"not ready addresses", corev1.Service{Spec: corev1.ServiceSpec{PublishNotReadyAddresses: true}}, false, []string{v1alpha1.ReasonPublishesNotReadyAddresses}},
		{"internal local", corev1.Service{Spec: corev1.ServiceSpec{InternalTrafficPolicy: &local}}, false, []string{v1alpha1.ReasonInternalTrafficPolicyLocal}},
		{"external local", corev1.Service{Spec: corev1.ServiceSpec{ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}}, false, []string{v1alpha1.ReasonExternalTrafficPolicyLocal}},
		{"session affinity", corev1.Service{Spec: corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}}, false, []string{v1alpha1.ReasonSessionAffinity}},
		{"traffic distribution that resolvers leave in effect", corev1.Service{Spec: corev1.ServiceSpec{TrafficDistribution: ptr.To(corev1.ServiceTrafficDistributionPreferSameZone)}}, false, nil},
		{"traffic distribution that they do not", corev1.Service{Spec: corev1.ServiceSpec{TrafficDistribution: ptr.To(corev1.ServiceTrafficDistributionPreferSameNode)}}, true, []string{v1alpha1.ReasonTrafficDistribution}},
		{"NLB to pods", annotated("service.beta.kubernetes.io/aws-load-balancer-nlb-target-type", "ip"), false, []string{v1alpha1.ReasonLoadBalancerTargetsPods}},
		{"NLB to nodes", annotated("service.beta.kubernetes.io/aws-load-balancer-nlb-target-type", "instance"), false, nil},
		{"NLB to pods by its previous name", annotated("service.beta.kubernetes.io/aws-load-balancer-type", "nlb-ip"), false, []string{v1alpha1.ReasonLoadBalancerTargetsPods}},
		{"NLB of the cloud provider", annotated("service.beta.kubernetes.io/aws-load-balancer-type", "nlb"), false, nil},
		{"ALB to pods", annotated("alb.ingress.kubernetes.io/target-type", "ip"), false, []string{v1alpha1.ReasonLoadBalancerTargetsPods}},
		{"NEG for an Ingress", annotated("cloud.google.com/neg", `{"ingress": true}`), false, []string{v1alpha1.ReasonLoadBalancerTargetsPods}},
		{"NEG for ports", annotated("cloud.google.com/neg", `{"exposed_ports": {"80": {"name": "shop"}}}`), false, []string{v1alpha1.ReasonLoadBalancerTargetsPods}},
		{"no NEG", annotated("cloud.google.com/neg", `{"ingress": false, "exposed_ports": {}}`), false, nil},
		{"a NEG that is no JSON", annotated("cloud.google.com/neg", `{{`), false, nil},
		{"several", corev1.Service{Spec: corev1.ServiceSpec{
			PublishNotReadyAddresses: true, InternalTrafficPolicy: &local, SessionAffinity: corev1.ServiceAffinityClientIP,
		}}, false, []string{v1alpha1.ReasonPublishesNotReadyAddresses, v1alpha1.ReasonInternalTrafficPolicyLocal, v1alpha1.ReasonSessionAffinity}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.service.Name = "cart"
			if got := reasons(t, OfService(&test.service, test.always), v1alpha1.ConditionServiceCompatible, `Service "cart"`); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			for key := range test.service.Annotations {
				if !slices.Contains(ServiceAnnotations(), key) {
					t.Errorf("%s is not one of ServiceAnnotations", key)
				}
			}
		})
	}
}

func TestTargetFindings(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	bare := corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}
	ready := corev1.PodSpec{Containers: []corev1.Container{{Name: "web", ReadinessProbe: &corev1.Probe{}}}}
	deleting := &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType}
	claims := []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	statefulSet := func(pod corev1.PodSpec, policy *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy, claims []corev1.PersistentVolumeClaim) runtime.Object {
		return &appsv1.StatefulSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}, Spec: appsv1.StatefulSetSpec{
			Template: corev1.PodTemplateSpec{Spec: pod}, PersistentVolumeClaimRetentionPolicy: policy, VolumeClaimTemplates: claims,
		}}
	}
	accepted := map[string]string{v1alpha1.AnnotationAcceptVolumeDeletion: "true"}
	operated := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Cache", "spec": map[string]any{
		"persistentVolumeClaimRetentionPolicy": map[string]any{"whenScaled": "Delete"},
	}}}
	for _, test := range []struct {
		name        string
		kind        string
		target      runtime.Object
		pod         *corev1.PodSpec
		annotations map[string]string
		want        []string
		keepsAwake  bool
	}{
		{"a readiness probe", "StatefulSet", statefulSet(ready, nil, claims), &ready, nil, nil, false},
		{"no probe", "StatefulSet", statefulSet(bare, nil, claims), &bare, nil, []string{v1alpha1.ReasonNoReadinessProbe}, false},
		{"a startup probe", "Deployment", nil, &corev1.PodSpec{Containers: []corev1.Container{{StartupProbe: &corev1.Probe{}}}}, nil, nil, false},
		{"a sidecar that is probed", "Deployment", nil, &corev1.PodSpec{Containers: bare.Containers, InitContainers: []corev1.Container{{RestartPolicy: &always, ReadinessProbe: &corev1.Probe{}}}}, nil, nil, false},
		{"a readiness gate", "Deployment", nil, &corev1.PodSpec{Containers: bare.Containers, ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/up"}}}, nil, nil, false},
		{"no pod template", "Cache", nil, nil, nil, nil, false},
		{"volumes are retained", "StatefulSet", statefulSet(ready, &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType}, claims), &ready, nil, nil, false},
		{"volumes are deleted", "StatefulSet", statefulSet(ready, deleting, claims), &ready, nil, []string{v1alpha1.ReasonVolumesDeletedAtZero}, true},
		{"volumes are deleted, which is accepted", "StatefulSet", statefulSet(ready, deleting, claims), &ready, accepted, nil, false},
		{"volumes are deleted, which is not quite accepted", "StatefulSet", statefulSet(ready, deleting, claims), &ready, map[string]string{v1alpha1.AnnotationAcceptVolumeDeletion: "false"}, []string{v1alpha1.ReasonVolumesDeletedAtZero}, true},
		{"no volumes to delete", "StatefulSet", statefulSet(ready, deleting, nil), &ready, nil, nil, false},
		{"volumes of an operator are deleted", "Cache", operated, nil, nil, []string{v1alpha1.ReasonVolumesDeletedAtZero}, true},
		{"both", "StatefulSet", statefulSet(bare, deleting, claims), &bare, nil, []string{v1alpha1.ReasonVolumesDeletedAtZero, v1alpha1.ReasonNoReadinessProbe}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			target, ok := test.target.(*unstructured.Unstructured)
			if !ok {
				target = &unstructured.Unstructured{Object: map[string]any{}}
				if test.target != nil {
					object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(test.target)
					if err != nil {
						t.Fatal(err)
					}
					target.Object = object
				}
			}
			traits := TraitsOf(target, test.pod)
			findings := OfTarget(schema.GroupResource{}, test.kind, "cart", test.annotations, &traits)
			if got := reasons(t, findings, v1alpha1.ConditionTargetCompatible, test.kind+` "cart"`); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if got := KeepsAwake(findings) != nil; got != test.keepsAwake {
				t.Errorf("keeps awake: %t, want %t", got, test.keepsAwake)
			}
			condition := ConditionOf(v1alpha1.ConditionTargetCompatible, findings)
			if got := ForbidsSleep(&condition); got != test.keepsAwake {
				t.Errorf("its condition forbids to sleep: %t, want %t", got, test.keepsAwake)
			}
		})
	}
}

func TestAutoscalerFindings(t *testing.T) {
	for _, test := range []struct {
		name        string
		minReplicas *int32
		annotations map[string]string
		want        []string
	}{
		{"KEDA's default", nil, nil, []string{v1alpha1.ReasonAutoscalerScalesToZero}},
		{"a minimum of zero", ptr.To[int32](0), nil, []string{v1alpha1.ReasonAutoscalerScalesToZero}},
		{"a minimum of one", ptr.To[int32](1), nil, nil},
		{"pinned to zero", ptr.To[int32](1), map[string]string{scaling.KEDAPausedReplicas: "0"}, []string{v1alpha1.ReasonAutoscalerPausedAtZero}},
		{"pinned to two", ptr.To[int32](1), map[string]string{scaling.KEDAPausedReplicas: "2"}, nil},
		{"put to sleep, pinned to zero before", ptr.To[int32](1), map[string]string{
			scaling.KEDAPaused: "true", v1alpha1.AnnotationPausedAnnotations: `{"autoscaling.keda.sh/paused-replicas":"0"}`,
		}, []string{v1alpha1.ReasonAutoscalerPausedAtZero}},
	} {
		t.Run("KEDA: "+test.name, func(t *testing.T) {
			object := &scaling.ScaledObject{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}, Spec: scaling.ScaledObjectSpec{MinReplicaCount: test.minReplicas}}
			if got := reasons(t, OfScaledObject("cart", object), v1alpha1.ConditionAutoscalerCompatible, `ScaledObject "cart"`); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
	for name, test := range map[string]struct {
		minReplicas *int32
		want        []string
	}{
		"no minimum":        {nil, nil},
		"a minimum of one":  {ptr.To[int32](1), nil},
		"a minimum of zero": {ptr.To[int32](0), []string{v1alpha1.ReasonAutoscalerScalesToZero}},
	} {
		t.Run("HPA: "+name, func(t *testing.T) {
			if got := reasons(t, OfHorizontalPodAutoscaler("cart", test.minReplicas), v1alpha1.ConditionAutoscalerCompatible, `HorizontalPodAutoscaler "cart"`); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestConditionOfFindings(t *testing.T) {
	findings := []Finding{
		{Condition: v1alpha1.ConditionTargetCompatible, Reason: "A", Message: "one"},
		{Condition: v1alpha1.ConditionServiceCompatible, Reason: "B", Message: "two"},
		{Condition: v1alpha1.ConditionTargetCompatible, Reason: "C", Message: "three"},
	}
	if got := ConditionOf(v1alpha1.ConditionTargetCompatible, findings); got.Status != metav1.ConditionFalse || got.Reason != "A" || got.Message != "one; three" {
		t.Errorf("got %+v", got)
	}
	if got := ConditionOf(v1alpha1.ConditionAutoscalerCompatible, findings); got.Status != metav1.ConditionTrue || got.Reason != v1alpha1.ReasonCompatible || got.Message == "" {
		t.Errorf("without findings: %+v", got)
	}
}
