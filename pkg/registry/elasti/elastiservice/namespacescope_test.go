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

package elastiservice

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

func TestOnlyNamespacesInScopeGetElastiServices(t *testing.T) {
	rejected := errors.New("rejected by another validation")
	for _, test := range []struct {
		name      string
		scope     namespaceScope
		namespace string
		want      string
	}{
		{name: "no scope", namespace: "shop", want: rejected.Error()},
		{name: "inside", scope: namespaceScope{"bank", "shop"}, namespace: "shop", want: rejected.Error()},
		{name: "outside", scope: namespaceScope{"bank", "forge"}, namespace: "shop", want: "no namespaces but bank, forge"},
	} {
		t.Run(test.name, func(t *testing.T) {
			validate := test.scope.onCreate(func(context.Context, runtime.Object) error { return rejected })
			err := validate(t.Context(), &elasti.ElastiService{ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: test.namespace}})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if !errors.Is(err, rejected) && !apierrors.IsInvalid(err) {
				t.Errorf("got %v, want it to be called invalid", err)
			}
		})
	}
}
