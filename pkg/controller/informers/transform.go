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

package informers

import "fmt"

// AlreadyTransformed is for transforms that get an object of another type than
// that which is watched. It returns the object when it is of type T, which means
// that it went through the transform before, and an error otherwise.
func AlreadyTransformed[T any](object any) (any, error) {
	if kept, ok := object.(T); ok {
		return kept, nil
	}
	var expected T
	return nil, fmt.Errorf("expected %T, got %T", expected, object)
}
