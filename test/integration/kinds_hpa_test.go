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

package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// hpaCooldown is the cooldown of a target with a HorizontalPodAutoscaler, which is
// synced every second.
const hpaCooldown = 8 * time.Second

// externalMetricsAPI registers an API that is served at an address of this machine.
const externalMetricsAPI = `
apiVersion: v1
kind: Service
metadata: {name: external-metrics}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: external-metrics, labels: {kubernetes.io/service-name: external-metrics}}
addressType: IPv4
endpoints: [{addresses: [%q], conditions: {ready: true}}]
ports: [{name: https, protocol: TCP, port: %s}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: %s, name: external-metrics, port: 443}
`

// serveEmptyQueues serves an external metrics API in which each queue has the length
// 0, until the test ends.
func serveEmptyQueues(t *testing.T, namespace string) {
	t.Helper()
	// The control plane reaches the server at an address of this machine.
	servers, err := shared.Kubernetes.DiscoveryV1().EndpointSlices(environment.SystemNamespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + environment.ServerName,
	})
	if err != nil {
		t.Fatal(err)
	}
	address := servers.Items[0].Endpoints[0].Addresses[0]
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	respond := func(content string) http.HandlerFunc {
		return func(response http.ResponseWriter, _ *http.Request) {
			response.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(response, content)
		}
	}
	const root = "/apis/external.metrics.k8s.io/v1beta1"
	mux.HandleFunc("GET "+root, respond(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"external.metrics.k8s.io/v1beta1",
		"resources":[{"name":"queue_length","namespaced":true,"kind":"ExternalMetricValueList","verbs":["get"]}]}`))
	mux.HandleFunc("GET "+root+"/namespaces/{namespace}/queue_length", func(response http.ResponseWriter, request *http.Request) {
		respond(fmt.Sprintf(`{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","metadata":{},
			"items":[{"metricName":"queue_length","metricLabels":{},"timestamp":%q,"value":"0"}]}`, time.Now().UTC().Format(time.RFC3339)))(response, request)
	})
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	kubectl := newKubectl(t, namespace)
	if _, err := kubectl.Run(t.Context(), fmt.Sprintf(externalMetricsAPI, address, port, namespace), "apply", "--filename=-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := kubectl.Run(context.Background(), "", "delete", "apiservice", "v1beta1.external.metrics.k8s.io"); err != nil {
			t.Error(err)
		}
	})
}

// createQueueAutoscaler creates a HorizontalPodAutoscaler that scales the application
// by the length of a queue, without delay.
func createQueueAutoscaler(t *testing.T, namespace string, minReplicas int32) {
	t.Helper()
	autoscaler := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "app"},
			MinReplicas:    ptr.To(minReplicas),
			MaxReplicas:    3,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "queue_length"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(1, resource.DecimalSI)},
			}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0)}},
		},
	}
	if _, err := shared.Kubernetes.AutoscalingV2().HorizontalPodAutoscalers(namespace).Create(t.Context(), autoscaler, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the HorizontalPodAutoscaler: %v", err)
	}
}

// waitForAutoscaler waits until a condition of the HorizontalPodAutoscaler has a reason.
func waitForAutoscaler(t *testing.T, namespace string, conditionType autoscalingv2.HorizontalPodAutoscalerConditionType, reason string) {
	t.Helper()
	eventuallyWithin(t, sleepTimeout, fmt.Sprintf("%s of the HorizontalPodAutoscaler has the reason %s", conditionType, reason), func(ctx context.Context) string {
		autoscaler, err := shared.Kubernetes.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(autoscaler.Status.Conditions, func(condition autoscalingv2.HorizontalPodAutoscalerCondition) bool {
			return condition.Type == conditionType
		})
		if i < 0 || autoscaler.Status.Conditions[i].Reason != reason {
			return fmt.Sprintf("its conditions are %+v", autoscaler.Status.Conditions)
		}
		return ""
	})
}

// A HorizontalPodAutoscaler that may scale to zero undoes wakes. The condition reports that
// with the required edit. After that edit it ends neither the cooldown nor a sleep.
func TestTargetOfAHorizontalPodAutoscalerSleepsAndWakesOnceItsMinimumIsOne(t *testing.T) {
	restartServerWith(t, "--polling-interval=1s", "--trigger-allowed-servers=127.0.0.0/8")
	namespace := newNamespace(t)
	serveEmptyQueues(t, namespace)
	var requests atomic.Value
	requests.Store("1")
	metrics := metricsOf(t, func() string { return requests.Load().(string) })
	createApplication(t, namespace, 1)
	createQueueAutoscaler(t, namespace, 0)
	object := newSleepyElastiService(fmt.Sprintf(`{"query":"requests","threshold":1,"serverAddress":%q}`, metrics.URL))
	object.Spec.CooldownPeriod = ptr.To(int32(hpaCooldown / time.Second))
	object.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerHPA, Name: "app"}
	createElastiService(t, namespace, object)
	message := waitForReason(t, namespace, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse, v1alpha1.ReasonAutoscalerScalesToZero)
	if !strings.Contains(message, "set spec.minReplicas to 1") {
		t.Errorf("the condition does not say what to do: %s", message)
	}

	minimum := []byte(`{"spec":{"minReplicas":1}}`)
	if _, err := shared.Kubernetes.AutoscalingV2().HorizontalPodAutoscalers(namespace).Patch(t.Context(), "app", types.MergePatchType, minimum, metav1.PatchOptions{}); err != nil {
		t.Fatalf("setting the minimum of the HorizontalPodAutoscaler: %v", err)
	}
	waitForReason(t, namespace, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	wakeApplication(t, namespace)
	waitForDesired(t, namespace, 1)
	// By its metric it would scale to zero; it scales to its minimum instead.
	waitForAutoscaler(t, namespace, autoscalingv2.ScalingLimited, "TooFewReplicas")
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	waitForSleeping(t, namespace, "app", v1alpha1.ReasonTriggerActive, "")
	used := time.Now()
	requests.Store("0")
	waitForDesired(t, namespace, 0)
	if idle := time.Since(used); idle < hpaCooldown {
		t.Errorf("the target was scaled to zero %s after its last use, before the end of the cooldown of %s", idle, hpaCooldown)
	}
	waitForSleeping(t, namespace, "app", v1alpha1.ReasonAsleep, "")
	// It is inert while the target sleeps.
	waitForAutoscaler(t, namespace, autoscalingv2.ScalingActive, "ScalingDisabled")
	if replicas := desiredReplicas(t, namespace); replicas != 0 {
		t.Errorf("the target has %d replicas while it sleeps", replicas)
	}
	wakeApplication(t, namespace)
	waitForDesired(t, namespace, 1)
	waitForAutoscaler(t, namespace, autoscalingv2.ScalingLimited, "TooFewReplicas")
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("the target has %d replicas after it was woken", replicas)
	}
}
