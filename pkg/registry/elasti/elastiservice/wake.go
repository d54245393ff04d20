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
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

// WakeREST is the wake subresource: creating a WakeRequest wakes the target.
// Any replica of the server can serve it at any time, and it is idempotent.
type WakeREST struct {
	targets *targets
	limit   *wakeLimit
	metrics *Metrics
	clock   clock.PassiveClock
}

var (
	_ rest.NamedCreater = &WakeREST{}
)

// New returns an empty WakeRequest.
func (*WakeREST) New() runtime.Object { return &elasti.WakeRequest{} }

// Destroy does nothing: the store belongs to REST.
func (*WakeREST) Destroy() {}

// Create wakes the target of the ElastiService called name. It returns as soon as
// the target's scale is set, with the request and its result as the status: a
// caller that may only create wake requests learns nothing else about the
// ElastiService, and scales to its spec.minTargetReplicas at most.
func (r *WakeREST) Create(ctx context.Context, name string, obj runtime.Object, createValidation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	dryRun := options != nil && dryrun.IsDryRun(options.DryRun)
	started := r.clock.Now()
	request, err := r.wake(ctx, name, obj, createValidation, dryRun)
	if !dryRun {
		r.metrics.woken(err == nil && request.Status.Scaled, err, r.clock.Since(started))
	}
	if err != nil {
		return nil, err
	}
	return request, nil
}

func (r *WakeREST) wake(ctx context.Context, name string, obj runtime.Object, createValidation rest.ValidateObjectFunc, dryRun bool) (*elasti.WakeRequest, error) {
	request, ok := obj.(*elasti.WakeRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a wake takes a WakeRequest, got %T", obj))
	}
	request.Status = elasti.WakeRequestStatus{}
	if request.Name != "" && request.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the request is for %q: leave it out or make them equal", request.Name, name))
	}
	request.Name = name
	request.Namespace = genericapirequest.NamespaceValue(ctx)
	if errs := validation.ValidateWakeRequest(request); len(errs) > 0 {
		return nil, apierrors.NewInvalid(elasti.Kind("WakeRequest"), name, errs)
	}
	if createValidation != nil {
		if err := createValidation(ctx, request.DeepCopyObject()); err != nil {
			return nil, err
		}
	}

	elastiService, err := r.targets.getCached(ctx, name)
	if err != nil {
		return nil, err
	}
	desired := desiredReplicas(elastiService, request)
	if err := r.limit.check(ctx, elastiService, desired); err != nil {
		return nil, err
	}
	result, err := r.targets.wakeForUse(ctx, elastiService, desired, reasonOf(request), dryRun)
	if err != nil {
		return nil, scalingError(elastiService, err)
	}

	// The request is not stored, so its fields have no owner.
	request.ManagedFields = nil
	request.CreationTimestamp = metav1.Now()
	request.Status = elasti.WakeRequestStatus{
		Replicas:      result.Replicas,
		ReadyReplicas: elastiService.Status.ReadyReplicas,
		Scaled:        result.Scaled,
		Mode:          elastiService.Status.Mode,
	}
	return request, nil
}

func desiredReplicas(elastiService *elasti.ElastiService, request *elasti.WakeRequest) int32 {
	if request.Spec.Replicas != nil {
		return *request.Spec.Replicas
	}
	return *elastiService.Spec.MinTargetReplicas
}

// reasonOf returns the reason of a wake for its Event. It has no numbers, such as
// how much is held: Events with the same text are aggregated.
func reasonOf(request *elasti.WakeRequest) string {
	if request.Spec.Reason == "" {
		return "no reason given"
	}
	return request.Spec.Reason
}
