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
	"errors"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestErrorsBecomeBoundedLabels(t *testing.T) {
	for err, want := range map[error]string{
		nil:                 errorNone,
		errors.New("other"): errorOther,
		apierrors.NewConflict(deploymentsResource.GroupResource(), "x", nil):                       errorConflict,
		fmt.Errorf("a: %w", apierrors.NewForbidden(deploymentsResource.GroupResource(), "x", nil)): errorForbidden,
		apierrors.NewNotFound(deploymentsResource.GroupResource(), "x"):                            errorNotFound,
	} {
		if got := errorClass(err); got != want || !slices.Contains(errorClasses, got) {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
