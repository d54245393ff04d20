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

// Package elastiservice keeps the cluster as each ElastiService wants it: the
// private Service, the proxy ports, the resolver slices that put resolvers in
// the path of a public Service, and the status.
//
// # Modes
//
// The mode follows from what is observed, never from what was intended. A
// ready endpoint in one of the public Service's own EndpointSlices (those that
// are not ours) means serve, none means proxy. The readiness of pods and the
// private Service's slices can be up to a second ahead of the public Service's
// slices, so they do not count. A target that was just scaled to zero gets its
// resolver slice before its endpoints are gone, and keeps it until they are.
//
// # The policy Always
//
// With spec.proxy.policy Always the resolver slice stays while pods are ready.
// The public Service then has the endpoints of its pods and of the resolvers,
// and whatever balances the Service's traffic chooses between them: resolvers
// receive about r/(r+p) of the new connections, with r resolvers and p ready
// pods, not all of them. Taking the pods out would mean editing the user's
// Service. So a resolver sees a sample of the traffic: enough to tell that a
// Service is in use, not to count its requests. One request in a cooldown that
// goes past the resolvers is not seen by them.
package elastiservice
