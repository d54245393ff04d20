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
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the stored objects in the host cluster.
var GroupVersion = schema.GroupVersion{Group: "storage.elasti.truefoundry.com", Version: "v1"}

// StoredObject is an object of the host cluster that holds an encoded object of
// this API server. Its kind depends on what it holds.
type StoredObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Key is the key below the prefix of the resource.
	Key string `json:"key,omitempty"`
	// Data is the encoded object.
	Data string `json:"data,omitempty"`
	// Digest proves that the key and the data were written by this package.
	Digest string `json:"digest,omitempty"`
	// Progress is set on the progress marker only, and differs in each version.
	Progress string `json:"progress,omitempty"`
	// Identity is set on the object with the identity of the store only.
	Identity string `json:"identity,omitempty"`
}

// StoredObjectList is a list of stored objects.
type StoredObjectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []StoredObject `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (o *StoredObject) DeepCopyObject() runtime.Object {
	copied := *o
	metadata := &o.ObjectMeta
	metadata.DeepCopyInto(&copied.ObjectMeta)
	return &copied
}

// DeepCopyObject implements runtime.Object.
func (l *StoredObjectList) DeepCopyObject() runtime.Object {
	copied := *l
	metadata := &l.ListMeta
	metadata.DeepCopyInto(&copied.ListMeta)
	copied.Items = make([]StoredObject, len(l.Items))
	for i := range l.Items {
		copied.Items[i] = *l.Items[i].DeepCopyObject().(*StoredObject)
	}
	return &copied
}

// newStoredObject returns the object that stores data at key. It has no version.
func newStoredObject(key string, data []byte) *StoredObject {
	object := &StoredObject{Key: key, Data: string(data)}
	object.Name = nameOf(key)
	object.Digest = object.digest()
	return object
}

// digest returns a hash of the key and the data. A key has no line break, so that no
// other key and data have the same input.
func (o *StoredObject) digest() string {
	digest := sha256.New()
	digest.Write([]byte(o.Key))
	digest.Write([]byte{'\n'})
	digest.Write([]byte(o.Data))
	return "sha256:" + hex.EncodeToString(digest.Sum(nil))
}

// verify returns an error if something else than this package has changed what
// the object stores.
func (o *StoredObject) verify() error {
	if o.Name != nameOf(o.Key) {
		return &damagedError{name: o.Name, reason: fmt.Sprintf("its key %q belongs to the name %s", o.Key, nameOf(o.Key))}
	}
	if o.Digest != o.digest() {
		return &damagedError{name: o.Name, reason: "its digest does not match its key and data"}
	}
	return nil
}

// key returns the key of the name. The key in the object is used only for hashed names:
// it may be damaged.
func (o *StoredObject) key() string {
	if key, known := keyOf(o.Name); known {
		return key
	}
	return o.Key
}

// version returns the resourceVersion as a number.
func (o *StoredObject) version() (uint64, error) {
	return parseVersion(o.ResourceVersion)
}

func parseVersion(version string) (uint64, error) {
	parsed, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the resourceVersion %q of the host cluster: %w", version, err)
	}
	return parsed, nil
}

// damagedError says that a stored object cannot be read as it is.
type damagedError struct {
	resource, name, reason string
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("the stored object %s/%s of the host cluster was changed by something else than the API server: %s; restore it from a backup or delete it", e.resource, e.name, e.reason)
}
