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

package guard

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

func TestRecordChangesOnlyWhatWasRead(t *testing.T) {
	client := fake.NewClientset()
	record := &Record{ConfigMaps: client.CoreV1().ConfigMaps("system"), Namespace: "system", Name: "store", Backend: "cluster"}
	expect := func(want string) {
		t.Helper()
		if got, err := record.Recorded(t.Context()); err != nil || got != want {
			t.Errorf("recorded is %q (%v), want %q", got, err, want)
		}
	}
	expect("")
	if err := record.Record(t.Context(), "first", "second"); !errors.Is(err, ErrChanged) {
		t.Errorf("replacing what is not there returned %v", err)
	}
	if err := record.Record(t.Context(), "", "first"); err != nil {
		t.Fatal(err)
	}
	expect("first")
	for _, from := range []string{"", "second"} {
		if err := record.Record(t.Context(), from, "third"); !errors.Is(err, ErrChanged) {
			t.Errorf("replacing %q returned %v", from, err)
		}
	}
	if err := record.Record(t.Context(), "first", "second"); err != nil {
		t.Fatal(err)
	}
	expect("second")
	found, err := client.CoreV1().ConfigMaps("system").Get(t.Context(), "store", metav1.GetOptions{})
	if err != nil || found.Data["storage"] != "cluster" {
		t.Errorf("the ConfigMap is %v (%v)", found, err)
	}
}

func TestMissingPermissionToReadTheRecordNamesTheRole(t *testing.T) {
	client := fake.NewClientset()
	informerstest.React(&client.Fake, "get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "store", errors.New("no"))
	})
	record := &Record{ConfigMaps: client.CoreV1().ConfigMaps("system"), Namespace: "system", Name: "store"}
	if _, err := record.Recorded(t.Context()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Role elasti-apiserver") {
		t.Errorf("got %v, want the Role that allows it", err)
	}
}
