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
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// namespaceScope has the namespaces that the controller works on, all when it is
// empty. An ElastiService elsewhere would do nothing, and its finalizer would
// keep it for ever.
type namespaceScope []string

// onCreate returns a validation that rejects an ElastiService outside of the scope.
func (s namespaceScope) onCreate(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	if len(s) == 0 {
		return validate
	}
	return func(ctx context.Context, obj runtime.Object) error {
		elastiService := obj.(*elasti.ElastiService)
		if !slices.Contains(s, elastiService.Namespace) {
			return apierrors.NewInvalid(elasti.Kind("ElastiService"), elastiService.Name, field.ErrorList{
				field.Forbidden(field.NewPath("metadata", "namespace"),
					fmt.Sprintf("this installation works on no namespaces but %s (--namespaces): create it in one of these, or have %q added", strings.Join(s, ", "), elastiService.Namespace)),
			})
		}
		if validate == nil {
			return nil
		}
		return validate(ctx, obj)
	}
}
