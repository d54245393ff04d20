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

// Package properties runs random sequences of actions of users, tenants, resolvers, servers
// and stores against elasti-apiserver behind a real kube-apiserver. After each quiet period
// it checks the invariants, and that no target at zero was unreachable during any write
// since the last one.
//
// A sequence is a function of its seed. A failure prints the seed and the sequence:
// `make test-properties SEED=7 FOR=5m` drives it again.
//
// It knows nothing of how the product keeps the invariants. Begin with properties_test.go.
package properties
