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

package apiserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// listBufferBytes is how much of a list is written at once.
const listBufferBytes = 64 << 10

// listSerializer encodes lists of ElastiServices as its Serializer does, byte
// for byte, but reuses the encoding of an object that it has encoded already at
// this resource version. An object in a list is as it is in the storage, so that
// its UID and resource version identify its content.
type listSerializer struct {
	runtime.Serializer
	cache *encodedObjects
}

// Encode implements runtime.Encoder.
func (s listSerializer) Encode(obj runtime.Object, w io.Writer) error {
	list, ok := obj.(*v1alpha1.ElastiServiceList)
	if !ok || list.Items == nil {
		return s.Serializer.Encode(obj, w)
	}
	// A first write this short announces a stream, which is then compressed
	// if it becomes long enough.
	if _, err := io.WriteString(w, "{"); err != nil {
		return err
	}
	metadata, err := json.Marshal(list.ListMeta)
	if err != nil {
		return fmt.Errorf("encoding the metadata of a list: %w", err)
	}
	var start []byte
	if list.Kind != "" {
		start = fmt.Appendf(start, `"kind":%q,`, list.Kind)
	}
	if list.APIVersion != "" {
		start = fmt.Appendf(start, `"apiVersion":%q,`, list.APIVersion)
	}
	start = fmt.Appendf(start, `"metadata":%s,"items":[`, metadata)
	out := bufio.NewWriterSize(w, listBufferBytes)
	if _, err := out.Write(start); err != nil {
		return err
	}
	for i := range list.Items {
		encoded, err := s.encodeItem(&list.Items[i])
		if err != nil {
			return err
		}
		if i > 0 {
			if err := out.WriteByte(','); err != nil {
				return err
			}
		}
		if _, err := out.Write(encoded); err != nil {
			return err
		}
	}
	if _, err := out.WriteString("]}\n"); err != nil {
		return err
	}
	return out.Flush()
}

// encodeItem returns the encoding of an object. The caller must not change it.
func (s listSerializer) encodeItem(item *v1alpha1.ElastiService) ([]byte, error) {
	key := encodingKey{uid: item.UID, resourceVersion: item.ResourceVersion}
	if encoded := s.cache.get(key); encoded != nil {
		return encoded, nil
	}
	var buffer bytes.Buffer
	if err := json.NewEncoder(&buffer).Encode(item); err != nil {
		return nil, fmt.Errorf("encoding %s/%s: %w", item.Namespace, item.Name, err)
	}
	encoded := bytes.Clone(bytes.TrimSuffix(buffer.Bytes(), []byte("\n")))
	s.cache.add(key, encoded)
	return encoded, nil
}
