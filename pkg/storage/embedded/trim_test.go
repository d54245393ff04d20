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

package embedded

import (
	"fmt"
	"strings"
	"testing"
)

func TestHistoryIsDroppedAtTheNextStart(t *testing.T) {
	dataDir := t.TempDir()
	server := start(t, dataDir)
	value := strings.Repeat("value", 40_000)
	for i := range 2 * trimAboveBytes / len(value) {
		put(t, server, "key", fmt.Sprintf("%d %s", i, value))
	}
	put(t, server, "key", "the last")
	put(t, server, "other", "one")
	if size := server.etcd.Server.Backend().Size(); size < trimAboveBytes {
		t.Fatalf("the database has only %d bytes", size)
	}
	revision := server.etcd.Server.KV().Rev()
	stop(t, server)

	server = start(t, dataDir)
	defer stop(t, server)
	if size := server.etcd.Server.Backend().Size(); size > trimAboveBytes/4 {
		t.Errorf("the database still has %d bytes", size)
	}
	for key, want := range map[string]string{"key": "the last", "other": "one"} {
		if got := get(t, server, key); got != want {
			t.Errorf("%s is %.40q, want %q", key, got, want)
		}
	}
	if after := server.etcd.Server.KV().Rev(); after < revision {
		t.Errorf("the revision went back from %d to %d", revision, after)
	}
	// Trimming a store that is in use keeps everything too.
	put(t, server, "key", "another")
	if err := server.etcd.Server.Backend().Defrag(); err != nil {
		t.Fatal(err)
	}
	if got := get(t, server, "key"); got != "another" {
		t.Errorf("the value is %q", got)
	}
}
