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

package credentials

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// KeyReader reads the keys that triggers refer to. It is safe for concurrent use.
type KeyReader interface {
	// ReadKey returns the value of a key, and a version that differs when the
	// value does. The error carries the API status of the server; it is a
	// *MissingKeyError when the object has no such key.
	ReadKey(ctx context.Context, namespace string, reference triggers.KeyReference) (value []byte, version string, err error)
}

// MissingKeyError says that an object has no such key, or an empty one.
type MissingKeyError struct {
	Reference triggers.KeyReference
}

// Error names the key.
func (e *MissingKeyError) Error() string { return fmt.Sprintf("there is no %s", e.Reference) }

// ClusterReader reads keys from the Secrets and ConfigMaps of a cluster, each
// with one get request, so that it needs no permission to list or watch them.
// It is safe for concurrent use.
type ClusterReader struct {
	host kubernetes.Interface
}

var _ KeyReader = &ClusterReader{}

// NewClusterReader returns a reader of the objects that a clientset reaches.
func NewClusterReader(host kubernetes.Interface) *ClusterReader { return &ClusterReader{host: host} }

// ReadKey reads a key.
func (c *ClusterReader) ReadKey(ctx context.Context, namespace string, reference triggers.KeyReference) ([]byte, string, error) {
	var value []byte
	var version string
	if reference.Kind == triggers.KindConfigMap {
		found, err := c.host.CoreV1().ConfigMaps(namespace).Get(ctx, reference.Name, metav1.GetOptions{})
		if err != nil {
			return nil, "", err
		}
		value, version = []byte(found.Data[reference.Key]), string(found.UID)+found.ResourceVersion
	} else {
		found, err := c.host.CoreV1().Secrets(namespace).Get(ctx, reference.Name, metav1.GetOptions{})
		if err != nil {
			return nil, "", err
		}
		value, version = found.Data[reference.Key], string(found.UID)+found.ResourceVersion
	}
	if len(value) == 0 {
		return nil, "", &MissingKeyError{Reference: reference}
	}
	return value, version, nil
}
