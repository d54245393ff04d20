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

package scaling

import (
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// KindProblem says what is wrong with the kind of a target.
type KindProblem string

const (
	// KindInvalid means that apiVersion or kind cannot name a kind.
	KindInvalid KindProblem = "Invalid"
	// KindNotServed means that the cluster does not serve the kind, such as
	// before its CustomResourceDefinition is installed.
	KindNotServed KindProblem = "NotServed"
	// KindNotScalable means that objects of the kind have no scale
	// subresource, or are not namespaced.
	KindNotScalable KindProblem = "NotScalable"
)

// KindError says that objects of a kind cannot be scaled. It is an API status
// error with code 404.
type KindError struct {
	// APIVersion and Kind are those of the target.
	APIVersion, Kind string
	// Problem is what is wrong with them.
	Problem KindProblem
}

// Error says what to do about the kind.
func (e *KindError) Error() string {
	switch e.Problem {
	case KindNotServed:
		return fmt.Sprintf("the cluster serves no kind %q in %q: install it, or correct spec.scaleTargetRef", e.Kind, e.APIVersion)
	case KindNotScalable:
		return fmt.Sprintf("kind %q in %q is not a namespaced kind with a scale subresource: choose a target that has one", e.Kind, e.APIVersion)
	default:
		return fmt.Sprintf("kind %q in %q is not a valid kind: correct spec.scaleTargetRef", e.Kind, e.APIVersion)
	}
}

// Status returns the error as an API server would.
func (e *KindError) Status() metav1.Status {
	group := e.APIVersion
	if groupVersion, err := schema.ParseGroupVersion(e.APIVersion); err == nil {
		group = groupVersion.Group
	}
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotFound,
		Reason:  metav1.StatusReasonNotFound,
		Message: e.Error(),
		Details: &metav1.StatusDetails{Group: group, Kind: e.Kind},
	}
}
