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

package embedded

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

// unversioned marks a result that lacks only its resource version. No store has
// such a version.
const unversioned = "unversioned"

// skipDecodeWrites is a storage whose writes do not decode what they have just
// encoded: the caller gets a copy of the object that was encoded. The storage
// below must have a skipDecoder. It is safe for concurrent use if that storage is.
//
// A copy still has what encoding drops, such as fractions of seconds. Clients never
// see that.
type skipDecodeWrites struct {
	storage.Interface
}

// Create implements storage.Interface.
func (s skipDecodeWrites) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	copyUnversioned(obj, out)
	err := s.Interface.Create(ctx, key, obj, out, ttl)
	clearUnversioned(out)
	return err
}

// GuaranteedUpdate implements storage.Interface.
func (s skipDecodeWrites) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	// The copy of a later attempt replaces that of an earlier one.
	copying := func(input runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
		updated, ttl, err := update(input, response)
		if err == nil {
			copyUnversioned(updated, destination)
		}
		return updated, ttl, err
	}
	err := s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, copying, cached)
	clearUnversioned(destination)
	return err
}

// copyUnversioned makes to a copy of from that lacks only its resource version.
// Where that is not possible, to stays as it is, and is decoded into.
func copyUnversioned(from, to runtime.Object) {
	if from == nil || to == nil || from == to || reflect.TypeOf(from) != reflect.TypeOf(to) {
		return
	}
	target := reflect.ValueOf(to)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return
	}
	copied := from.DeepCopyObject()
	accessor, err := meta.Accessor(copied)
	if err != nil {
		return
	}
	accessor.SetResourceVersion(unversioned)
	target.Elem().Set(reflect.ValueOf(copied).Elem())
}

// clearUnversioned clears the result of a write that failed: a result that still
// lacks its version was not stored.
func clearUnversioned(result runtime.Object) {
	if isUnversioned(result) {
		reflect.ValueOf(result).Elem().SetZero()
	}
}

// isUnversioned reports whether an object was made by copyUnversioned.
func isUnversioned(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	return err == nil && accessor.GetResourceVersion() == unversioned
}

// skipDecoder is a decoder that sets only the version of objects that
// copyUnversioned made, and decodes into all others.
type skipDecoder struct {
	etcd3.Decoder
	versioner storage.Versioner
}

// Decode implements etcd3.Decoder.
func (d skipDecoder) Decode(value []byte, into runtime.Object, revision int64) error {
	if isUnversioned(into) {
		return d.versioner.UpdateObject(into, uint64(revision)) //nolint:gosec // A revision is never negative.
	}
	return d.Decoder.Decode(value, into, revision)
}
