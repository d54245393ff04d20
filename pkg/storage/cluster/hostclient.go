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
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	// pageSize is how many stored objects are listed at once.
	pageSize = 500
	// maxEncodedBytes bounds a stored object in the encoding of the host, whose
	// etcd takes 1.5 MiB with everything that the host adds.
	maxEncodedBytes = 1 << 20
	// deletionEventTimeout bounds the wait for the event of a deletion that the host
	// has responded.
	deletionEventTimeout = 2 * time.Second
)

// errObjectNotFound says that there is no such stored object, though its resource is
// served.
var errObjectNotFound = errors.New("no such stored object")

// hostClient reads and writes the stored objects of one resource.
type hostClient struct {
	client     rest.Interface
	parameters runtime.ParameterCodec
	resource   string
}

// newHostClient returns the client of the resource of a kind in the host cluster.
func newHostClient(config *rest.Config, httpClient *http.Client, resource, kind string) (*hostClient, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(GroupVersion.WithKind(kind), &StoredObject{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind(kind+"List"), &StoredObjectList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	own := rest.CopyConfig(config)
	own.APIPath = "/apis"
	own.GroupVersion = &GroupVersion
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientForConfigAndClient(own, httpClient)
	if err != nil {
		return nil, fmt.Errorf("creating the client for %s in the host cluster: %w", resource, err)
	}
	return &hostClient{client: client, parameters: runtime.NewParameterCodec(scheme), resource: resource}, nil
}

// get returns the stored object with a name, or errObjectNotFound.
func (h *hostClient) get(ctx context.Context, name string) (*StoredObject, error) {
	object := &StoredObject{}
	err := h.client.Get().Resource(h.resource).Name(name).Do(ctx).Into(object)
	return object, h.asObjectNotFound(err)
}

// create stores a new object and returns it with its version. A write is sent
// once: after a lost response, the second one would find the object of the first.
func (h *hostClient) create(ctx context.Context, object *StoredObject) (*StoredObject, error) {
	if err := checkSize(object); err != nil {
		return nil, err
	}
	created := &StoredObject{}
	err := h.client.Post().Resource(h.resource).MaxRetries(0).Body(object).Do(ctx).Into(created)
	return created, err
}

// replace stores an object if the stored one has its resourceVersion.
func (h *hostClient) replace(ctx context.Context, object *StoredObject) (*StoredObject, error) {
	if err := checkSize(object); err != nil {
		return nil, err
	}
	replaced := &StoredObject{}
	err := h.client.Put().Resource(h.resource).Name(object.Name).MaxRetries(0).Body(object).Do(ctx).Into(replaced)
	return replaced, h.asObjectNotFound(err)
}

// remove deletes the stored object with a name if it has a version, and returns
// the version of the deletion, or 0 if it did not become known in time. The host
// responds to a deletion without a version: only the event has it.
func (h *hostClient) remove(ctx context.Context, name string, version uint64) (uint64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	one := &metav1.ListOptions{Watch: true, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	events, err := h.client.Get().Resource(h.resource).VersionedParams(one, h.parameters).Watch(ctx)
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	options := &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{ResourceVersion: new(strconv.FormatUint(version, 10))},
	}
	response, err := h.client.Delete().Resource(h.resource).Name(name).MaxRetries(0).Body(options).Do(ctx).Get()
	if err != nil {
		return 0, h.asObjectNotFound(err)
	}
	if _, deleted := response.(*metav1.Status); !deleted {
		return 0, &damagedError{resource: h.resource, name: name, reason: "it has finalizers, and stays until they are removed"}
	}
	return deletionVersion(ctx, events, version), nil
}

// deletionVersion returns the version of the deletion of what had a version, or 0.
func deletionVersion(ctx context.Context, events watch.Interface, version uint64) uint64 {
	ctx, cancel := context.WithTimeout(ctx, deletionEventTimeout)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return 0
		case event, open := <-events.ResultChan():
			if !open {
				return 0
			}
			stored, ok := event.Object.(*StoredObject)
			if !ok || event.Type != watch.Deleted {
				continue
			}
			if deleted, err := stored.version(); err == nil && deleted > version {
				return deleted
			}
		}
	}
}

// touch changes the progress marker and returns the version of that change. The
// content must be new: a write that changes nothing gets no version.
func (h *hostClient) touch(ctx context.Context, content string) (uint64, error) {
	patch, err := json.Marshal(map[string]string{"progress": content})
	if err != nil {
		return 0, err
	}
	marker, err := h.patchMarker(ctx, patch)
	if errors.Is(err, errObjectNotFound) {
		created := &StoredObject{ObjectMeta: metav1.ObjectMeta{Name: progressName}, Progress: content}
		marker = &StoredObject{}
		err = h.client.Post().Resource(h.resource).Body(created).Do(ctx).Into(marker)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		// Another replica was first: with the first marker, or with a patch each time that
		// the host has applied this one.
		marker, err = h.patchMarker(ctx, patch)
	}
	if err != nil {
		return 0, err
	}
	return marker.version()
}

// patchMarker changes the progress marker, or returns errObjectNotFound.
func (h *hostClient) patchMarker(ctx context.Context, patch []byte) (*StoredObject, error) {
	marker := &StoredObject{}
	err := h.client.Patch(types.MergePatchType).Resource(h.resource).Name(progressName).Body(patch).Do(ctx).Into(marker)
	return marker, h.asObjectNotFound(err)
}

// count returns how many objects are stored, those included that store nothing.
func (h *hostClient) count(ctx context.Context) (int64, error) {
	list, err := h.page(ctx, &metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	count := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		count += *list.RemainingItemCount
	}
	return count, nil
}

// version returns a version that is not older than any that the host cluster has returned.
func (h *hostClient) version(ctx context.Context) (uint64, error) {
	list, err := h.page(ctx, &metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return parseVersion(list.ResourceVersion)
}

// list calls each with all stored objects as of a version, or as they are now if
// it is 0, and returns the version.
func (h *hostClient) list(ctx context.Context, version uint64, name string, each func(*StoredObject) error) (uint64, error) {
	options := &metav1.ListOptions{Limit: pageSize}
	if name != "" {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	if version > 0 {
		options.ResourceVersion = strconv.FormatUint(version, 10)
		options.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	for {
		list, err := h.page(ctx, options)
		if err != nil {
			return 0, err
		}
		for i := range list.Items {
			if storesNothing(list.Items[i].Name) {
				continue
			}
			if err := each(&list.Items[i]); err != nil {
				return 0, err
			}
		}
		if list.Continue == "" {
			return parseVersion(list.ResourceVersion)
		}
		options.Continue = list.Continue
		options.ResourceVersion, options.ResourceVersionMatch = "", ""
	}
}

func (h *hostClient) page(ctx context.Context, options *metav1.ListOptions) (*StoredObjectList, error) {
	list := &StoredObjectList{}
	err := h.client.Get().Resource(h.resource).VersionedParams(options, h.parameters).Do(ctx).Into(list)
	return list, err
}

// watch returns the events of all stored objects after a version.
func (h *hostClient) watch(ctx context.Context, version uint64) (watch.Interface, error) {
	options := &metav1.ListOptions{
		Watch:               true,
		AllowWatchBookmarks: true,
		ResourceVersion:     strconv.FormatUint(version, 10),
	}
	return h.client.Get().Resource(h.resource).VersionedParams(options, h.parameters).Watch(ctx)
}

// asObjectNotFound distinguishes a missing object from a missing resource.
func (h *hostClient) asObjectNotFound(err error) error {
	if apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return errObjectNotFound
	}
	return err
}

// checkSize rejects what the etcd of the host could reject, with an error that
// says so.
func checkSize(object *StoredObject) error {
	// A byte takes six in JSON at most.
	if 6*(len(object.Key)+len(object.Data)) <= maxEncodedBytes {
		return nil
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encoding a stored object: %w", err)
	}
	if len(encoded) > maxEncodedBytes {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the object takes %d bytes in the storage, but must not take more than %d: make it smaller", len(encoded), maxEncodedBytes))
	}
	return nil
}
