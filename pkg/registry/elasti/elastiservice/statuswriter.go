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
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// previousStatusManagers are the field managers under which earlier versions wrote
// statuses by requests. Their ownership of fields is dropped.
var previousStatusManagers = []string{"elasti-controller", "elasti-sleep", "elasti-apiserver"}

// StatusWriter changes the statuses of ElastiServices inside of the server,
// without requests. No request can change what it changes, whatever the user may
// do. It is safe for concurrent use.
type StatusWriter struct {
	statuses *genericregistry.Store
}

// UpdateStatus calls change with the stored ElastiService, and stores the status
// that change leaves, and nothing else. When change returns an error, nothing is
// stored and that error is returned unwrapped. change is called again when the
// object was changed meanwhile. An ElastiService with another UID counts as not
// found. A status that stays as it is costs no write.
func (w *StatusWriter) UpdateStatus(ctx context.Context, key types.NamespacedName, uid types.UID, change func(*v1alpha1.ElastiService) error) (*v1alpha1.ElastiService, error) {
	apply := func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		updated := stored.DeepCopyObject().(*elasti.ElastiService)
		if updated.UID != uid {
			return nil, apierrors.NewNotFound(elasti.Resource("elastiservices"), key.Name)
		}
		external := &v1alpha1.ElastiService{}
		if err := v1alpha1.Convert_elasti_ElastiService_To_v1alpha1_ElastiService(updated, external, nil); err != nil {
			return nil, err
		}
		if err := change(external); err != nil {
			return nil, err
		}
		if err := v1alpha1.Convert_v1alpha1_ElastiServiceStatus_To_elasti_ElastiServiceStatus(&external.Status, &updated.Status, nil); err != nil {
			return nil, err
		}
		updated.ManagedFields = slices.DeleteFunc(updated.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Subresource == "status" && slices.Contains(previousStatusManagers, entry.Manager)
		})
		return updated, nil
	}
	ctx = genericapirequest.WithNamespace(ctx, key.Namespace)
	updated, _, err := w.statuses.Update(ctx, key.Name, rest.DefaultUpdatedObjectInfo(nil, apply),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		// Not wrapped: it is an API status, or an error of change.
		return nil, err
	}
	external := &v1alpha1.ElastiService{}
	if err := v1alpha1.Convert_elasti_ElastiService_To_v1alpha1_ElastiService(updated.(*elasti.ElastiService), external, nil); err != nil {
		return nil, err
	}
	return external, nil
}
