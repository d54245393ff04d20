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

package v1alpha1_test

import (
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/install"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

var defaultProxy = &v1alpha1.ProxySpec{
	Policy: v1alpha1.ProxyWhenAsleep, HoldTimeoutSeconds: ptr.To[int32](600), MaxPending: ptr.To[int32](10000),
	MaxConcurrencyPerPod: ptr.To[int32](0), Readiness: v1alpha1.ReadinessProbe,
}

// defaultsTests are specs, and what they are with defaults.
var defaultsTests = []struct {
	name        string
	given, want v1alpha1.ElastiServiceSpec
}{
	{
		name: "nothing given",
		want: v1alpha1.ElastiServiceSpec{MinTargetReplicas: ptr.To[int32](1), CooldownPeriod: ptr.To[int32](900), Proxy: defaultProxy},
	},
	{
		name:  "an empty period is all day",
		given: v1alpha1.ElastiServiceSpec{EnabledPeriod: &v1alpha1.EnabledPeriod{}},
		want: v1alpha1.ElastiServiceSpec{
			MinTargetReplicas: ptr.To[int32](1), CooldownPeriod: ptr.To[int32](900), Proxy: defaultProxy,
			EnabledPeriod: &v1alpha1.EnabledPeriod{Schedule: "0 0 * * *", Duration: "24h", TimeZone: "UTC"},
		},
	},
	{
		name: "matchers",
		given: v1alpha1.ElastiServiceSpec{ProbeResponse: []v1alpha1.ProbeResponseRule{{
			Path: &v1alpha1.PathMatch{}, Headers: []v1alpha1.ValueMatch{{}}, QueryParams: []v1alpha1.ValueMatch{{}},
		}}},
		want: v1alpha1.ElastiServiceSpec{
			MinTargetReplicas: ptr.To[int32](1), CooldownPeriod: ptr.To[int32](900), Proxy: defaultProxy,
			ProbeResponse: []v1alpha1.ProbeResponseRule{{
				Path:        &v1alpha1.PathMatch{Type: v1alpha1.PathMatchPrefix},
				Headers:     []v1alpha1.ValueMatch{{Type: v1alpha1.ValueMatchExact}},
				QueryParams: []v1alpha1.ValueMatch{{Type: v1alpha1.ValueMatchExact}},
			}},
		},
	},
	{
		name: "what is given stays, zero too",
		given: v1alpha1.ElastiServiceSpec{
			MinTargetReplicas: ptr.To[int32](3), CooldownPeriod: ptr.To[int32](0),
			Proxy: &v1alpha1.ProxySpec{
				Policy: v1alpha1.ProxyAlways, HoldTimeoutSeconds: ptr.To[int32](5), MaxPending: ptr.To[int32](7),
				MaxConcurrencyPerPod: ptr.To[int32](9), Readiness: v1alpha1.ReadinessEndpoints,
			},
		},
		want: v1alpha1.ElastiServiceSpec{
			MinTargetReplicas: ptr.To[int32](3), CooldownPeriod: ptr.To[int32](0),
			Proxy: &v1alpha1.ProxySpec{
				Policy: v1alpha1.ProxyAlways, HoldTimeoutSeconds: ptr.To[int32](5), MaxPending: ptr.To[int32](7),
				MaxConcurrencyPerPod: ptr.To[int32](9), Readiness: v1alpha1.ReadinessEndpoints,
			},
		},
	},
}

func TestDefaults(t *testing.T) {
	for _, test := range defaultsTests {
		t.Run(test.name, func(t *testing.T) {
			elastiService := &v1alpha1.ElastiService{Spec: test.given}
			newScheme().Default(elastiService)
			if !apiequality.Semantic.DeepEqual(elastiService.Spec, test.want) {
				t.Errorf("got %+v, want %+v", elastiService.Spec, test.want)
			}
			again := elastiService.DeepCopy()
			newScheme().Default(again)
			if !apiequality.Semantic.DeepEqual(elastiService, again) {
				t.Error("defaulting twice differs from defaulting once")
			}
		})
	}
}

func TestFieldSelectors(t *testing.T) {
	scheme, kind := newScheme(), v1alpha1.SchemeGroupVersion.WithKind("ElastiService")
	for _, label := range []string{"metadata.name", "metadata.namespace", "spec.service", "spec.scaleTargetRef.name", "status.mode"} {
		if _, _, err := scheme.ConvertFieldLabel(kind, label, "value"); err != nil {
			t.Errorf("%s: %v", label, err)
		}
	}
	for _, label := range []string{"spec.cooldownPeriod", "namespace/spec.service"} {
		if _, _, err := scheme.ConvertFieldLabel(kind, label, "value"); err == nil {
			t.Errorf("%s can be selected", label)
		}
	}
}
