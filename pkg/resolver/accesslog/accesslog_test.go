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

package accesslog

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"
	"time"
)

func TestRecordsAreLines(t *testing.T) {
	var out bytes.Buffer
	w := New(&out)
	received := time.Now()
	var writing sync.WaitGroup
	for range 50 {
		writing.Go(func() {
			if err := w.Write(&Record{Namespace: "shop", Service: "cart", Path: "/a\nb", Outcome: Forwarded, Received: received}); err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	if len(lines) != 50 {
		t.Fatalf("there are %d lines", len(lines))
	}
	for _, line := range lines {
		var record Record
		if err := json.Unmarshal(line, &record); err != nil || !record.Received.Equal(received) || record.Path != "/a\nb" {
			t.Fatalf("%s is %+v (%v)", line, record, err)
		}
		if bytes.Contains(line, []byte("wakeAnswered")) {
			t.Fatalf("%s has a time that is not known", line)
		}
	}
}
