//go:build linux

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

package stream

import "testing"

// takePipes lets no pipe be left for the rest of the test.
func takePipes(t *testing.T) {
	t.Helper()
	var taken []*pipe
	for {
		p := pipes.get()
		if p == nil {
			break
		}
		taken = append(taken, p)
	}
	if len(taken) != maxPipes {
		t.Fatalf("there are %d pipes, want %d", len(taken), maxPipes)
	}
	t.Cleanup(func() {
		for _, p := range taken {
			p.close()
		}
	})
}
