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

// Package cluster stores the objects of the API server as custom resources of
// the host cluster: without an etcd or a volume of its own, and with any number
// of replicas.
//
// Each resource has a cluster-scoped CustomResourceDefinition in the group
// storage.elasti.truefoundry.com that is for storage only. A stored object holds
// one encoded object of the API in a string, with its own UID, ownerReferences
// and finalizers, so that none of them means anything to the host. Versions are
// those of the host: a write is conditional on the version that it was based on,
// and lists, watches and continuations carry the host's resourceVersions.
//
// The host tells a watch of a quiet resource how far it has come only once a
// minute. Where a read has to be current, the store therefore writes to an object
// that stores nothing, the progress marker of the resource: the version of that
// write is current, and its event on the watch says that all earlier ones have
// arrived. Writes of the marker are shared by everything that waits for one, and
// happen only while something waits.
//
// A stored object that was changed by something else than this package is
// reported in the log and in errors, and never decoded. The reason of the error of
// reading it is StorageReadError. Lists and watches leave it out, so that one damaged
// object does not end the service for all others.
//
// It knows nothing of the types that it stores. Begin with Backend.
package cluster
