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
	"net/http"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// A target of which only the scale may be read stays awake, and a warning says so to its author at once.
func TestAKindThatCannotBeReadIsWarnedAbout(t *testing.T) {
	checker := newChecker(t, func(path string) any {
		switch path {
		case "/api/v1/namespaces/shop/services/cart":
			return &corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "cart"}, Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "cart"}, ClusterIP: "10.0.0.1",
			}}
		case "/apis/monitoring.coreos.com/v1":
			return &metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "monitoring.coreos.com/v1",
				APIResources: []metav1.APIResource{
					{Name: "prometheuses", Kind: "Prometheus", Namespaced: true},
					{Name: "prometheuses/scale", Kind: "Scale", Group: "autoscaling", Version: "v1", Namespaced: true},
				},
			}
		case "/apis/monitoring.coreos.com/v1/namespaces/shop/prometheuses/cart":
			return failure(metav1.StatusReasonForbidden, http.StatusForbidden)
		case "/apis/monitoring.coreos.com/v1/namespaces/shop/prometheuses/cart/scale":
			return &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: "autoscaling/v1"}, ObjectMeta: metav1.ObjectMeta{Name: "cart"}}
		default:
			return nil
		}
	})
	elastiService := cart()
	elastiService.Spec.ScaleTargetRef = elasti.ScaleTargetRef{APIVersion: "monitoring.coreos.com/v1", Kind: "Prometheus", Name: "cart"}
	warnings := checker.Warnings(t.Context(), elastiService)
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], `spec.scaleTargetRef: Prometheus "cart" is not put to sleep`) ||
		!strings.Contains(warnings[0], "get, list and watch prometheuses.monitoring.coreos.com") {
		t.Errorf("got %q, want the permission that is missing", warnings)
	}
}
