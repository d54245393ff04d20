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

// Package e2e holds the end-to-end tests. They run on the cluster that
// KUBECONFIG names, on which the product is deployed, and use it from outside: as a
// client of a Service, and as a user of the Kubernetes API.
//
// Tests that disturb the product itself, by ending its processes, do not run in
// parallel with others.
//
// It knows no more of the product than a user could see. Begin with scene_test.go.
package e2e
