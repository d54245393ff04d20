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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/installcheck/registration"
)

// unavailableAfter is how long the API server of the cluster may not reach this one before
// that is logged. It takes up to half a minute to try again after a start.
const unavailableAfter = time.Minute

// APIServicePublisher publishes the bundle as spec.caBundle of an APIService.
type APIServicePublisher struct {
	// APIServices is where the APIService lives.
	APIServices apiregistrationv1client.APIServiceInterface
	// Name is the name of the APIService.
	Name string
	// Service is the one of this server, to which the APIService leads.
	Service types.NamespacedName
	// Clock is the time by which this server has not been reached for long.
	Clock clock.PassiveClock
}

var _ BundlePublisher = APIServicePublisher{}

// Publish sets spec.caBundle of the APIService. An APIService that is not
// there yet is an error: it may be created after the server. One that leads to another
// server is left as it is.
func (p APIServicePublisher) Publish(ctx context.Context, bundle []byte) error {
	apiService, err := p.APIServices.Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("reading the APIService %s: %w: apply the manifests again, which have it", p.Name, err)
	case err != nil:
		return fmt.Errorf("reading the APIService %s: %w", p.Name, withRole(err, clusterRole))
	}
	if problem := registration.CheckOwner(apiService, p.Service); problem != nil {
		return problem
	}
	if bytes.Equal(apiService.Spec.CABundle, bundle) {
		p.logUnavailable(ctx, apiService)
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": bundle}})
	if err != nil {
		return fmt.Errorf("encoding the certificate authority of the APIService %s: %w", p.Name, err)
	}
	if _, err := p.APIServices.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("publishing the certificate authority in the APIService %s: %w", p.Name, withRole(err, clusterRole))
	}
	return nil
}

// logUnavailable logs what to do when the API server of the cluster has not reached this
// one for long.
func (p APIServicePublisher) logUnavailable(ctx context.Context, apiService *apiregistrationv1.APIService) {
	since := apiService.CreationTimestamp
	if available := registration.Available(apiService); available != nil {
		since = available.LastTransitionTime
	}
	if p.Clock.Since(since.Time) < unavailableAfter {
		return
	}
	if problem := registration.Check(apiService, p.Service); problem != nil {
		klog.FromContext(ctx).Error(problem, "The cluster does not serve ElastiServices")
	}
}

// Where the manifests allow what this package does.
const (
	systemRole  = "Role elasti-apiserver"
	clusterRole = "ClusterRole elasti-apiserver:server"
)

// withRole adds to an error about a missing permission what has it.
func withRole(err error, role string) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w: apply the manifests again, whose %s allows it", err, role)
}
