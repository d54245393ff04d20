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

package preflight

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// newChecker returns a checker of a cluster that serves GET requests with
// what handle returns for the path: nil is 404, and a Status its own code.
func newChecker(t *testing.T, handle func(path string) any) *Checker {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		object := handle(request.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		if object == nil {
			object = failure(metav1.StatusReasonNotFound, http.StatusNotFound)
		}
		if status, ok := object.(*metav1.Status); ok {
			w.WriteHeader(int(status.Code))
		}
		if err := json.NewEncoder(w).Encode(object); err != nil {
			t.Errorf("responding to %s: %v", request.URL.Path, err)
		}
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	scaler, err := scaling.NewClient(scaling.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{Kubernetes: client, Dynamic: dynamicClient, Scaling: scaler})
}

func failure(reason metav1.StatusReason, code int32) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: code}
}

func cart() *elasti.ElastiService {
	return &elasti.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec: elasti.ElastiServiceSpec{
			Service:        "cart",
			ScaleTargetRef: elasti.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "cart"},
			Proxy:          &elasti.ProxySpec{Readiness: elasti.ReadinessEndpoints},
		},
	}
}

func TestWarnings(t *testing.T) {
	good := corev1.ServiceSpec{Selector: map[string]string{"app": "cart"}, ClusterIP: "10.0.0.1"}
	for _, test := range []struct {
		name     string
		service  *corev1.ServiceSpec
		period   int32
		noTarget bool
		noKind   bool
		// want are parts of the warnings, in order.
		want []string
	}{
		{name: "all is well", service: &good, period: 1},
		{name: "no Service", period: 1, want: []string{`no Service "cart" yet`}},
		{name: "no target", service: &good, noTarget: true, want: []string{`no Deployment "cart" yet`}},
		{name: "no kind", service: &good, noKind: true, want: []string{`serves no kind "Deployment"`}},
		{name: "a slow probe", service: &good, period: 10, want: []string{`container "web", which runs every 10 s`}},
		{name: "ExternalName", service: &corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}, period: 1, want: []string{"ExternalName"}},
		{name: "no selector", service: &corev1.ServiceSpec{ClusterIP: "10.0.0.1"}, period: 1, want: []string{"no selector"}},
		{
			name: "headless, local", period: 1,
			service: &corev1.ServiceSpec{Selector: good.Selector, ClusterIP: corev1.ClusterIPNone, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal},
			want:    []string{"headless", "externalTrafficPolicy Local"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			checker := newChecker(t, func(path string) any {
				switch {
				case path == "/api/v1/namespaces/shop/services/cart" && test.service != nil:
					return &corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "cart"}, Spec: *test.service}
				case path == "/apis/apps/v1" && !test.noKind:
					return &metav1.APIResourceList{
						TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "apps/v1",
						APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true}, {Name: "deployments/scale", Kind: "Scale", Namespaced: true}},
					}
				case path == "/apis/apps/v1/namespaces/shop/deployments/cart" && !test.noTarget:
					return deployment(test.period)
				default:
					return nil
				}
			})
			warnings := checker.Warnings(t.Context(), cart())
			if len(warnings) != len(test.want) {
				t.Fatalf("got %q, want %q", warnings, test.want)
			}
			for i := range warnings {
				if !strings.Contains(warnings[i], test.want[i]) {
					t.Errorf("got %q, want %q", warnings[i], test.want[i])
				}
			}
		})
	}
}

// What is incompatible with scale to zero is reported at once, by the object that
// it is about.
func TestWarningsAboutWhatIsIncompatibleWithScaleToZero(t *testing.T) {
	const statefulSets = "/apis/apps/v1/namespaces/shop/statefulsets/cart"
	checker := newChecker(t, func(path string) any {
		switch path {
		case "/api/v1/namespaces/shop/services/cart":
			return &corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "cart"}, Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "cart"}, ClusterIP: "10.0.0.1", PublishNotReadyAddresses: true,
			}}
		case "/apis/apps/v1":
			return &metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "apps/v1",
				APIResources: []metav1.APIResource{{Name: "statefulsets", Kind: "StatefulSet", Namespaced: true}, {Name: "statefulsets/scale", Kind: "Scale", Namespaced: true}},
			}
		case statefulSets:
			return &appsv1.StatefulSet{
				TypeMeta:   metav1.TypeMeta{Kind: "StatefulSet", APIVersion: "apps/v1"},
				ObjectMeta: metav1.ObjectMeta{Name: "cart"},
				Spec: appsv1.StatefulSetSpec{
					Template:                             corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}},
					PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType},
					VolumeClaimTemplates:                 []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}},
				},
			}
		case "/apis/keda.sh/v1alpha1/namespaces/shop/scaledobjects/cart":
			return map[string]any{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": map[string]any{"name": "cart"}, "spec": map[string]any{}}
		case "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers/cart":
			return map[string]any{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": map[string]any{"name": "cart"}, "spec": map[string]any{"minReplicas": 0}}
		default:
			return nil
		}
	})
	service, target := "spec.service: Service \"cart\" has publishNotReadyAddresses", "spec.scaleTargetRef: StatefulSet \"cart\" "
	for autoscaler, about := range map[elasti.AutoscalerType]string{
		elasti.AutoscalerKEDA: "spec.autoscaler: ScaledObject \"cart\" scales the target to zero too",
		elasti.AutoscalerHPA:  "spec.autoscaler: HorizontalPodAutoscaler \"cart\" has minReplicas 0",
	} {
		elastiService := cart()
		elastiService.Spec.ScaleTargetRef.Kind = "StatefulSet"
		elastiService.Spec.Autoscaler = &elasti.AutoscalerSpec{Type: autoscaler, Name: "cart"}
		want := []string{service, target + "is not put to sleep", target + "makes pods without", about}
		if warnings := checker.Warnings(t.Context(), elastiService); !slices.EqualFunc(warnings, want, strings.HasPrefix) {
			t.Errorf("%s: got %q, want %q", autoscaler, warnings, want)
		}
		elastiService.Annotations = map[string]string{v1alpha1.AnnotationAcceptVolumeDeletion: "true"}
		want = slices.Delete(want, 1, 2)
		if warnings := checker.Warnings(t.Context(), elastiService); !slices.EqualFunc(warnings, want, strings.HasPrefix) {
			t.Errorf("%s, accepted: got %q, want %q", autoscaler, warnings, want)
		}
	}
}

func deployment(period int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{Kind: "Deployment", APIVersion: "apps/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "cart"},
		Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "web", ReadinessProbe: &corev1.Probe{PeriodSeconds: period}},
			{Name: "sidecar"},
		}}}},
	}
}

// A cluster that hangs delays no write for long.
func TestWarningsDoNotWait(t *testing.T) {
	hang, stop := context.WithCancel(context.Background())
	checker := newChecker(t, func(string) any {
		<-hang.Done()
		return nil
	})
	// The server can only end once its handlers have.
	t.Cleanup(stop)
	began := time.Now()
	if warnings := checker.Warnings(t.Context(), cart()); len(warnings) > 0 {
		t.Errorf("got %q from a cluster that does not respond, want none", warnings)
	}
	if waited := time.Since(began); waited > 20*warningTimeout {
		t.Errorf("waited %s", waited)
	}
}

// A client that writes many objects does not make the cluster busy with warnings.
func TestManyWritesAreNotAllWarnedAbout(t *testing.T) {
	const writes = 20 * lookupsAtOnce
	var queried atomic.Int64
	checker := newChecker(t, func(path string) any {
		if strings.HasSuffix(path, "/services/cart") {
			queried.Add(1)
		}
		return nil
	})
	began := time.Now()
	warned := 0
	for range writes {
		if len(checker.Warnings(t.Context(), cart())) > 0 {
			warned++
		}
	}
	most := lookupsAtOnce + int(time.Since(began).Seconds()*lookupsPerSecond) + 1
	if warned < lookupsAtOnce || warned > most || int(queried.Load()) > most {
		t.Errorf("%d of %d writes were warned about, with %d queries; want from %d to %d", warned, writes, queried.Load(), lookupsAtOnce, most)
	}
}
