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
	"encoding/json"
	"os"
	"reflect"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// What was stored once must be read the same for ever: the golden file is
// changed by adding fields, never otherwise.
func TestStoredForm(t *testing.T) {
	golden, err := os.ReadFile("testdata/storage/elastiservice.v1alpha1.json")
	if err != nil {
		t.Fatal(err)
	}
	codec := serializer.NewCodecFactory(newScheme()).LegacyCodec(v1alpha1.SchemeGroupVersion)
	obj, err := runtime.Decode(codec, golden)
	if err != nil {
		t.Fatal(err)
	}
	elastiService := obj.(*elasti.ElastiService)
	for path, value := range map[string]any{"spec": elastiService.Spec, "status": elastiService.Status} {
		assertFilled(t, path, reflect.ValueOf(value))
	}

	encoded, err := runtime.Encode(codec, elastiService)
	if err != nil {
		t.Fatal(err)
	}
	var got, want map[string]any
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(golden, &want); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(got, want) {
		t.Errorf("stored as\n%s\nwant the golden file", encoded)
	}
}

// assertFilled checks that the golden file has every field.
func assertFilled(t *testing.T, path string, value reflect.Value) {
	t.Helper()
	if value.IsZero() {
		t.Errorf("the golden file has no %s", path)
		return
	}
	if value.Type() == reflect.TypeFor[metav1.Time]() || value.Type() == reflect.TypeFor[metav1.MicroTime]() || value.Type() == reflect.TypeFor[runtime.RawExtension]() {
		return
	}
	switch value.Kind() {
	case reflect.Pointer:
		assertFilled(t, path, value.Elem())
	case reflect.Slice:
		for i := range value.Len() {
			assertFilled(t, path, value.Index(i))
		}
	case reflect.Struct:
		for i := range value.NumField() {
			assertFilled(t, path+"."+value.Type().Field(i).Name, value.Field(i))
		}
	}
}
