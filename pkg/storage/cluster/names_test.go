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
	"cmp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func keys() []string {
	long := strings.Repeat("a", 253)
	return []string{
		"", "a", "a.b", "a/b", "a/b.c", "a.b/c", "a/b/c", "a-b/c", "ab/c", "n.a.b", "n/a.b", "c.a", "c/a", "progress", "h.a",
		"30001", "A", "a/B", "a/", "/a", "-/a", "a/-", long, "a/" + long, "b/" + long, "a/" + long[:252] + "b", "a/a/" + long,
		strings.Repeat("n", 63) + "/a", strings.Repeat("n", 64) + "/a",
	}
}

func TestNoTwoKeysShareAName(t *testing.T) {
	owners := map[string]string{progressName: "the progress marker", identityName: "the identity"}
	for _, key := range keys() {
		name := nameOf(key)
		if owner, taken := owners[name]; taken {
			t.Errorf("%q and %q are both stored as %s", key, owner, name)
		}
		owners[name] = key
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("%q is stored as %s: %v", key, name, problems)
		}
		if read, known := keyOf(name); known && read != key {
			t.Errorf("%q is stored as %s, which is read as %q", key, name, read)
		}
	}
}

// Lists of the host cluster come in the order of names.
func TestNamesSortAsTheirKeys(t *testing.T) {
	namespaced := []string{"a/b", "a-b/c", "ab/c", "a/b.c", "a/b-c", "a/b0", "a0/b", "a/a", "a-/b", "b/a"}
	slices.Sort(namespaced)
	if !slices.IsSortedFunc(namespaced, func(a, b string) int {
		if strings.HasPrefix(nameOf(a), hashedPrefix) || strings.HasPrefix(nameOf(b), hashedPrefix) {
			return 0
		}
		return cmp.Compare(nameOf(a), nameOf(b))
	}) {
		t.Errorf("the names of %v are in another order", namespaced)
	}
}

func FuzzNames(f *testing.F) {
	for _, key := range keys() {
		f.Add(key, "a/b")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		if one != other && nameOf(one) == nameOf(other) {
			t.Errorf("%q and %q are both stored as %s", one, other, nameOf(one))
		}
		if problems := validation.IsDNS1123Subdomain(nameOf(one)); len(problems) > 0 {
			t.Errorf("%q is stored as %s: %v", one, nameOf(one), problems)
		}
	})
}
