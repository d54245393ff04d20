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

package main

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestTheLimitOfConnectionsIsReplaced(t *testing.T) {
	want := []string{"--name=one", "--max-connections=20000"}
	for _, arguments := range [][]string{{"--name=one"}, {"--max-connections=5", "--name=one"}} {
		if got := withConnectionsFlag(slices.Clone(arguments), 10000); !slices.Equal(got, want) {
			t.Errorf("of %q it makes %q", arguments, got)
		}
	}
}

func TestOpenFileLimitIsTheSoftOne(t *testing.T) {
	const limits = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max processes             7                    8                    processes \n" +
		"Max open files            %                20000                files     \n"
	for soft, want := range map[string]int{"1024": 1024, "unlimited": math.MaxInt} {
		got, err := openFileLimit(strings.ReplaceAll(limits, "%", soft))
		if err != nil || got != want {
			t.Errorf("%s: the limit is %d, want %d (error: %v)", soft, got, want, err)
		}
	}
	if _, err := openFileLimit("Max processes 7 8 processes\n"); err == nil {
		t.Error("limits without a number of open files are no error")
	}
}

func TestTooFewOpenFilesAreAnError(t *testing.T) {
	self := []int{os.Getpid()}
	if err := checkOpenFiles(self, -otherFiles); err != nil {
		t.Error(err)
	}
	limits, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := openFileLimit(string(limits))
	if err != nil {
		t.Fatal(err)
	}
	if limit == math.MaxInt {
		t.Skip("this process may have any number of files open")
	}
	if err := checkOpenFiles(self, limit); err == nil || !strings.Contains(err.Error(), "ulimit -Hn") {
		t.Errorf("the error is %v", err)
	}
}

func TestHeldRequestsAreThoseOfTheService(t *testing.T) {
	const metrics = `# TYPE elasti_resolver_queued_count gauge
elasti_resolver_queued_count{namespace="bench-a",source="till"} 3
elasti_resolver_queued_count{namespace="bench-a",source="web"} 10000
elasti_resolver_queued_count{namespace="bench-b",source="web"} 5
`
	if got, err := heldFor(metrics, "bench-a", "web"); err != nil || got != 10000 {
		t.Errorf("it holds %d (error: %v)", got, err)
	}
	if _, err := heldFor(metrics, "bench-b", "till"); err == nil {
		t.Error("a Service without a sample is no error")
	}
}
