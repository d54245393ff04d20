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

// Package consistency lets a server read from its watch cache what it has
// written itself (read-your-writes).
//
// A watch cache receives a write a little later than the client that made it
// receives the response. So the server records the resource versions of its
// writes, and reads the cache at one of these or later: the cache waits until it
// has caught up with that version.
//
// TrackWrites records every write of a storage in a VersionTracker. Where no
// other server writes, a read of the cache at the version of that tracker
// returns what is stored. Where others do, a VersionTracker or a KeyTracker that
// is fed with some writes makes the reads that depend on these see them.
//
// The package deals with storages, keys and resource versions. It must not know
// the type of the objects, what the keys stand for, or which reads need which
// writes: that is for the registry to decide.
//
// Begin with VersionTracker, then read TrackWrites, which feeds it.
// KeyTracker stands alone.
package consistency
