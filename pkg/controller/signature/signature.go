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

// Package signature distinguishes the objects that this product made in the cluster
// from those that only carry its labels and annotations. Any client that may write an
// object can write its labels and annotations, and those of private Services and
// resolver slices record which targets are to be woken; so each is signed with a key
// that the server alone has.
//
// A signature is for one object by namespace and name, of a private Service also
// by UID, and for everything that its marks contain. A copy of a private Service is
// not signed, then; a client that may write one can restore what it contained
// before, with its signature, and nothing else.
//
// It does not know what the marks mean. Begin with Signer.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// keyBytes is the length of a key.
const keyBytes = 32

// Signer signs objects and verifies its signatures. It is safe for concurrent use.
type Signer struct {
	key []byte
}

// New returns a signer with a key of 32 bytes.
func New(key []byte) (*Signer, error) {
	if len(key) != keyBytes {
		return nil, errors.New("the key of signatures must have 32 bytes")
	}
	return &Signer{key: key}, nil
}

// Sign puts a signature on an object that has its namespace, name and marks, and
// if it is a private Service its UID.
func (s *Signer) Sign(object *metav1.ObjectMeta) {
	metav1.SetMetaDataAnnotation(object, v1alpha1.AnnotationSignature, s.signatureOf(object))
}

// Made reports whether an object has the signature that Sign gives it.
func (s *Signer) Made(object *metav1.ObjectMeta) bool {
	if object.Annotations[v1alpha1.AnnotationSignature] == "" {
		return false
	}
	return hmac.Equal([]byte(object.Annotations[v1alpha1.AnnotationSignature]), []byte(s.signatureOf(object)))
}

func (s *Signer) signatureOf(object *metav1.ObjectMeta) string {
	uid := ""
	if object.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate {
		uid = string(object.UID)
	}
	// Lengths separate one part from the next one.
	var signed strings.Builder
	for _, part := range []string{
		object.Namespace, object.Name, uid,
		object.Labels[v1alpha1.LabelRole], object.Labels[discoveryv1.LabelServiceName],
		object.Annotations[v1alpha1.AnnotationOwner], object.Annotations[v1alpha1.AnnotationTarget],
	} {
		fmt.Fprintf(&signed, "%d:%s", len(part), part)
	}
	code := hmac.New(sha256.New, s.key)
	// Writing to a hash never fails.
	_, _ = code.Write([]byte(signed.String()))
	return base64.RawURLEncoding.EncodeToString(code.Sum(nil))
}
