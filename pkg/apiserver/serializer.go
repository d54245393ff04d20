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
	"k8s.io/apimachinery/pkg/runtime"
)

// textSerializer offers JSON and YAML only. ElastiServices have no protobuf
// encoding: a client that prefers protobuf and accepts JSON, as client-go's typed
// clients do, gets JSON. With protobuf among the media types it would get 406.
type textSerializer struct {
	runtime.NegotiatedSerializer
	// lists caches the encodings of what is listed.
	lists *encodedObjects
}

func newTextSerializer(all runtime.NegotiatedSerializer) textSerializer {
	return textSerializer{NegotiatedSerializer: all, lists: newEncodedObjects(maxEncodedObjectsBytes)}
}

// SupportedMediaTypes returns the media types that every object here can be encoded in.
func (s textSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	var supported []runtime.SerializerInfo
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		switch info.MediaType {
		case runtime.ContentTypeJSON:
			info.Serializer = listSerializer{info.Serializer, s.lists}
			supported = append(supported, info)
		case runtime.ContentTypeYAML:
			supported = append(supported, info)
		}
	}
	return supported
}
