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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// asStorageError returns the error that the generic registry gets for one of the
// host cluster. An error of the host about stored objects must not look like an
// error of this API server about its own objects: a client must not read a missing
// CustomResourceDefinition as a missing object, nor a missing permission of the
// server as one of its own.
func asStorageError(err error, doing string) error {
	var storageError *storage.StorageError
	var damaged *damagedError
	switch {
	case err == nil, errors.As(err, &storageError):
		return err
	case errors.As(err, &damaged):
		return apierrors.NewInternalError(fmt.Errorf("%s: %w", doing, err))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", doing, err)
	case isForwarded(err):
		return err
	case apierrors.ReasonForError(err) == "":
		// There is no response of the host cluster.
		return apierrors.NewServiceUnavailable(fmt.Sprintf("%s: the storage in the host cluster cannot be reached, try again: %v", doing, err))
	default:
		return apierrors.NewInternalError(fmt.Errorf("%s: the host cluster responded: %w", doing, err))
	}
}

// storeReadError returns the error about an object that is stored and cannot be read. Its
// reason tells it apart from the errors of a storage that does not work at the moment.
func storeReadError(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: err.Error(),
	}}
}

// isForwarded reports whether an error of the host cluster means the same to a
// client of this API server as to the server.
func isForwarded(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// hostResource is the resource of the host cluster that stores a resource.
func hostResource(resource schema.GroupResource) string { return "stored" + resource.Resource }
