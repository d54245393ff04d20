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

// Package patchcheck rejects a patch whose values have the wrong types with the
// paths of the fields. The generic server responds with the whole patch and the error
// of its decoder, which names no field.
//
// It knows types alone: which values are valid is up to validation. Begin with Handler.
package patchcheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"
)

// Options say which patches are checked, and what the error says.
type Options struct {
	// Resource is the resource whose objects, and statuses, are patched.
	Resource schema.GroupVersionResource
	// Kind is the kind of the objects, Type the Go type of that version.
	Kind schema.GroupKind
	Type reflect.Type
	// MaxBytes is the longest body that the server reads. Longer ones are left to it.
	MaxBytes int64
	// Codecs encode the responses.
	Codecs runtime.NegotiatedSerializer
}

// Handler rejects patches with values of wrong types, and passes all other requests
// to next unchanged.
func Handler(next http.Handler, options Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || !options.concerns(info) || req.Body == nil {
			next.ServeHTTP(w, req)
			return
		}
		patch, err := io.ReadAll(io.LimitReader(req.Body, options.MaxBytes+1))
		req.Body = &replayed{Reader: io.MultiReader(bytes.NewReader(patch), rest{req.Body, err}), Closer: req.Body}
		if err == nil && int64(len(patch)) <= options.MaxBytes {
			if problems := Check(contentType(req), patch, options.Type); len(problems) > 0 {
				responsewriters.ErrorNegotiated(apierrors.NewInvalid(options.Kind, info.Name, problems), options.Codecs, options.Resource.GroupVersion(), w, req)
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

func (o *Options) concerns(info *request.RequestInfo) bool {
	return info.IsResourceRequest && info.Verb == "patch" && info.APIGroup == o.Resource.Group && info.APIVersion == o.Resource.Version &&
		info.Resource == o.Resource.Resource && (info.Subresource == "" || info.Subresource == "status")
}

func contentType(req *http.Request) types.PatchType {
	mediaType, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return types.PatchType(mediaType)
}

// Check returns the values of a patch that an object of a type cannot have. A patch
// that cannot be parsed is left to the generic server.
func Check(patchType types.PatchType, patch []byte, t reflect.Type) field.ErrorList {
	c := checker{}
	switch patchType {
	case types.ApplyYAMLPatchType:
		converted, err := yaml.YAMLToJSON(patch)
		if err != nil {
			return nil
		}
		patch = converted
		fallthrough
	case types.MergePatchType, types.StrategicMergePatchType:
		value, err := decode(patch)
		if err != nil {
			return nil
		}
		if _, ok := value.(map[string]any); !ok {
			return nil
		}
		c.check(value, t, nil)
	case types.JSONPatchType:
		var operations []operation
		if err := json.Unmarshal(patch, &operations); err != nil {
			return nil
		}
		c.checkOperations(operations, t)
	}
	return c.problems
}

// replayed is a body of which a part was read and is read again.
type replayed struct {
	io.Reader
	io.Closer
}

// rest is what follows the part of a body that was read.
type rest struct {
	body io.Reader
	err  error
}

// Read implements io.Reader.
func (r rest) Read(p []byte) (int, error) {
	if r.err != nil && !errors.Is(r.err, io.EOF) {
		return 0, r.err
	}
	return r.body.Read(p)
}
