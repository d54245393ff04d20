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

// Package proxyports allocates the ports that resolvers listen on. Each belongs to
// a single port of the public Service of a single ElastiService, in the whole
// cluster: a claim in the storage records the owner, and a port has at most one.
//
// It stores nothing itself, and does not know how resolvers serve a port. Begin with
// Allocator.
package proxyports
