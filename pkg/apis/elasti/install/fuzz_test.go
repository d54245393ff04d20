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

package install_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

// Whatever a client sends is rejected or accepted, never a crash; what is
// accepted can be stored and read back, and is still accepted then.
func FuzzElastiService(f *testing.F) {
	manifests, err := filepath.Glob("testdata/kubeelasti/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, manifest := range append(manifests, "testdata/storage/elastiservice.v1alpha1.json") {
		content, err := os.ReadFile(manifest)
		if err != nil {
			f.Fatal(err)
		}
		asJSON, err := yaml.YAMLToJSON(content)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(asJSON)
	}
	codec := serializer.NewCodecFactory(newScheme()).LegacyCodec(v1alpha1.SchemeGroupVersion)
	f.Fuzz(func(t *testing.T, content []byte) {
		obj, err := runtime.Decode(codec, content)
		if err != nil {
			return
		}
		elastiService, ok := obj.(*elasti.ElastiService)
		if !ok {
			return
		}
		if len(validation.ValidateElastiService(elastiService)) > 0 {
			return
		}
		validation.Warnings(&elastiService.Spec)
		stored, err := runtime.Encode(codec, elastiService)
		if err != nil {
			t.Fatalf("accepted, but cannot be stored: %v", err)
		}
		read, err := runtime.Decode(codec, stored)
		if err != nil {
			t.Fatalf("stored, but cannot be read: %v", err)
		}
		if errs := validation.ValidateElastiService(read.(*elasti.ElastiService)); len(errs) > 0 {
			t.Errorf("accepted before it was stored, and not after: %v", errs)
		}
		again, err := runtime.Encode(codec, read)
		if err != nil || !bytes.Equal(stored, again) {
			t.Errorf("stored as\n%s\nand then as\n%s\n%v", stored, again, err)
		}
	})
}

// Likewise for wake requests, which are not stored.
func FuzzWakeRequest(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"WakeRequest","spec":{"reason":"traffic is held","pending":3,"replicas":2}}`))
	f.Add([]byte(`{"kind":"WakeRequest","spec":{"pending":-1},"status":{"mode":"serve"}}`))
	codec := serializer.NewCodecFactory(newScheme()).LegacyCodec(v1alpha1.SchemeGroupVersion)
	kind := v1alpha1.SchemeGroupVersion.WithKind("WakeRequest")
	f.Fuzz(func(t *testing.T, content []byte) {
		obj, _, err := codec.Decode(content, &kind, nil)
		if err != nil {
			return
		}
		request, ok := obj.(*elasti.WakeRequest)
		if !ok || len(validation.ValidateWakeRequest(request)) > 0 {
			return
		}
		encoded, err := runtime.Encode(codec, request)
		if err != nil {
			t.Fatalf("accepted, but cannot be returned: %v", err)
		}
		read, err := runtime.Decode(codec, encoded)
		if err != nil || !apiequality.Semantic.DeepEqual(read, request) {
			t.Errorf("returned as %s, which reads as %+v, not %+v: %v", encoded, read, request, err)
		}
	})
}
