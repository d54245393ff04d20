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

package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The names of stored objects. A prefix says how the rest is to be read, so that
// no two keys share a name, and none has that of an object that stores nothing.
const (
	namespacedPrefix = "n."
	clusterPrefix    = "c."
	hashedPrefix     = "h."
	// progressName is the name of the progress marker, and identityName that of the
	// object with the identity of the store.
	progressName = "progress"
	identityName = "identity"
)

// storesNothing reports whether an object of a name is none of those that store an
// object of the API server.
func storesNothing(name string) bool { return name == progressName || name == identityName }

// nameOf returns the name of the stored object of a key, which is
// <namespace>/<name> or <name>. A namespace has no dots, so that the first dot
// separates it from the name; names sort as their keys do. A key that makes no
// legal name, such as one that is too long, is hashed.
func nameOf(key string) string {
	namespace, name, namespaced := strings.Cut(key, "/")
	readable := clusterPrefix + key
	if namespaced {
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			return hashedName(key)
		}
		readable = namespacedPrefix + namespace + "." + name
	}
	if len(validation.IsDNS1123Subdomain(readable)) > 0 {
		return hashedName(key)
	}
	return readable
}

func hashedName(key string) string {
	digest := sha256.Sum256([]byte(key))
	return hashedPrefix + hex.EncodeToString(digest[:])
}

// keyOf returns the key that has a name. It is unknown for a hashed one.
func keyOf(name string) (key string, known bool) {
	if key, found := strings.CutPrefix(name, clusterPrefix); found {
		return key, true
	}
	rest, found := strings.CutPrefix(name, namespacedPrefix)
	if !found {
		return "", false
	}
	namespace, name, found := strings.Cut(rest, ".")
	return namespace + "/" + name, found
}
