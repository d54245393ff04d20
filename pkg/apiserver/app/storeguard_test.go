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

package app

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
)

func TestPrivateServicesShowThatElastiServicesWereStored(t *testing.T) {
	key := bytes.Repeat([]byte("k"), 32)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "elasti-system", Name: signingKeySecret}, Data: map[string][]byte{signature.SecretKey: key}}
	unsigned := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "forged", UID: "a", Labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RolePrivate}}}
	signed := unsigned.DeepCopy()
	signed.Name = "made"
	signer, err := signature.New(key)
	if err != nil {
		t.Fatal(err)
	}
	signer.Sign(&signed.ObjectMeta)
	for name, test := range map[string]struct {
		objects    []runtime.Object
		namespaces []string
		want       string
	}{
		"a new cluster":                        {},
		"a server that had no ElastiServices":  {objects: []runtime.Object{secret}},
		"what a tenant labels":                 {objects: []runtime.Object{secret, unsigned}},
		"a private Service of another product": {objects: []runtime.Object{signed}},
		"a private Service":                    {objects: []runtime.Object{secret, unsigned, signed}, want: "shop/made"},
		"one of a namespace":                   {objects: []runtime.Object{secret, signed}, namespaces: []string{"blog", "shop"}, want: "shop/made"},
		"one of another namespace":             {objects: []runtime.Object{secret, signed}, namespaces: []string{"blog"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &evidence{host: fake.NewClientset(test.objects...), namespace: "elasti-system", namespaces: test.namespaces}
			found, err := e.find(t.Context())
			if err != nil || (found == "") != (test.want == "") || !strings.Contains(found, test.want) {
				t.Errorf("found %q (%v), want %q", found, err, test.want)
			}
		})
	}
}
