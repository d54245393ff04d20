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

package route

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// largeMetadata returns the metadata of an object that has as much of each part as the
// server accepts from a tenant, or more.
func largeMetadata() metav1.ObjectMeta {
	large := strings.Repeat("x", 64<<10)
	return metav1.ObjectMeta{
		Namespace: "shop", Name: "cart", UID: "1", ResourceVersion: "5", Generation: 3,
		CreationTimestamp: metav1.NewTime(time.Unix(1700000000, 0)),
		Labels:            map[string]string{"team": large, discoveryv1.LabelServiceName: "cart-private"},
		Annotations:       map[string]string{"kubectl.kubernetes.io/last-applied-configuration": large},
		OwnerReferences:   []metav1.OwnerReference{{Name: large}},
		Finalizers:        []string{large},
		ManagedFields:     []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:` + large + `":{}}`)}},
	}
}

// keptBytes returns what the transform keeps, and how much that is. Informers transform the
// objects of a list that is streamed twice.
func keptBytes[T any](t *testing.T, given T) (T, int) {
	t.Helper()
	result, err := DropUnused(given)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	again, err := DropUnused(result)
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(again, result) {
		t.Errorf("the second time %+v is kept, the first time %+v", again, result)
	}
	return result.(T), len(encoded)
}

// Each resolver keeps the ElastiServices of all tenants.
func TestOfAnElastiServiceWhatResolversUseIsKept(t *testing.T) {
	metadata := &runtime.RawExtension{Raw: []byte(`{"query":"` + strings.Repeat("x", 60<<10) + `"}`)}
	given := &v1alpha1.ElastiService{
		ObjectMeta: largeMetadata(),
		Spec: v1alpha1.ElastiServiceSpec{
			Service: "cart", CooldownPeriod: ptr.To[int32](60),
			Triggers:      []v1alpha1.ScaleTrigger{{Type: triggers.TypePrometheus, Metadata: metadata}, {Type: triggers.TypeTraffic}},
			ProbeResponse: []v1alpha1.ProbeResponseRule{{Method: "GET"}},
			Proxy:         &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways, AllowedClients: []string{"10.0.0.0/8"}},
		},
		Status: v1alpha1.ElastiServiceStatus{PrivateService: "cart-private", Replicas: 1, ReadinessProbes: &v1alpha1.ReadinessProbes{}},
	}
	before := given.DeepCopy()
	kept, size := keptBytes(t, given)
	if size > 4<<10 {
		t.Errorf("%d bytes are kept, want fewer", size)
	}
	if !equality.Semantic.DeepEqual(given, before) {
		t.Errorf("the given object is changed to %+v", given)
	}
	if got, want := configOf(kept, nil), configOf(given, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("what is kept is served with %+v, want %+v", got, want)
	}
	if kept.UID != given.UID || kept.Generation != given.Generation || !kept.CreationTimestamp.Equal(&given.CreationTimestamp) || len(kept.Spec.ProbeResponse) != 1 {
		t.Errorf("kept %+v", kept)
	}
}

func TestOfAnEndpointSliceWhatResolversUseIsKept(t *testing.T) {
	given := sliceOf(80, endpointOf("a", "10.0.0.1", ptr.To(true), ptr.To(false)))
	given.ObjectMeta = largeMetadata()
	given.OwnerReferences = append(given.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: "cart-private", Controller: ptr.To(true)})
	kept, size := keptBytes(t, given)
	if size > 4<<10 {
		t.Errorf("%d bytes are kept, want fewer", size)
	}
	if service, _ := serviceOfSliceObject(kept); len(service) != 1 || service[0] != "shop/cart-private" || kept.UID != types.UID("1") {
		t.Errorf("kept %+v of %v", kept.ObjectMeta, service)
	}
	if got := podsOf([]*discoveryv1.EndpointSlice{kept}); len(got) != 1 {
		t.Errorf("kept the pods %v, want one", got)
	}
}

// What no Service controls belongs to none: the EndpointSlice controller of Kubernetes did not
// make it, or the Service is deleted.
func TestEndpointSliceThatItsServiceDoesNotControlBelongsToNone(t *testing.T) {
	private := metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: "cart-private", Controller: ptr.To(true)}
	with := func(change func(*metav1.OwnerReference)) []metav1.OwnerReference {
		changed := private
		change(&changed)
		return []metav1.OwnerReference{changed}
	}
	for name, test := range map[string]struct {
		owners []metav1.OwnerReference
		want   string
	}{
		"controlled":         {[]metav1.OwnerReference{private}, "shop/cart-private"},
		"without owners":     {nil, "shop/"},
		"owned alone":        {with(func(owner *metav1.OwnerReference) { owner.Controller = nil }), "shop/"},
		"of another Service": {with(func(owner *metav1.OwnerReference) { owner.Name = "forged" }), "shop/"},
		"of another kind":    {with(func(owner *metav1.OwnerReference) { owner.Kind = "ConfigMap" }), "shop/"},
		"of another API":     {with(func(owner *metav1.OwnerReference) { owner.APIVersion = "example.com/v1" }), "shop/"},
	} {
		t.Run(name, func(t *testing.T) {
			given := sliceOf(80)
			given.ObjectMeta = largeMetadata()
			given.OwnerReferences = test.owners
			kept, _ := keptBytes(t, given)
			if service, _ := serviceOfSliceObject(kept); len(service) != 1 || service[0] != test.want {
				t.Errorf("it belongs to %v, want %s", service, test.want)
			}
		})
	}
}
