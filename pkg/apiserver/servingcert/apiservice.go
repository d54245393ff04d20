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

package servingcert

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
)

// APIServicePublisher publishes the bundle as spec.caBundle of an APIService.
type APIServicePublisher struct {
	// APIServices is where the APIService lives.
	APIServices apiregistrationv1client.APIServiceInterface
	// Name is the name of the APIService.
	Name string
}

var _ BundlePublisher = APIServicePublisher{}

// Publish sets spec.caBundle of the APIService. An APIService that is not
// there yet is an error: it may be created after the server.
func (p APIServicePublisher) Publish(ctx context.Context, bundle []byte) error {
	apiService, err := p.APIServices.Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the APIService %s: %w", p.Name, err)
	}
	if bytes.Equal(apiService.Spec.CABundle, bundle) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": bundle}})
	if err != nil {
		return fmt.Errorf("encoding the certificate authority of the APIService %s: %w", p.Name, err)
	}
	if _, err := p.APIServices.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("publishing the certificate authority in the APIService %s: %w", p.Name, err)
	}
	return nil
}
