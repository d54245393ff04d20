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
	"fmt"
	"math"
	"os/exec"
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
	process := limitedProcess(t, 100)
	if err := checkOpenFiles([]int{process}, 100-otherFiles); err != nil {
		t.Error(err)
	}
	if err := checkOpenFiles([]int{process}, 101-otherFiles); err == nil || !strings.Contains(err.Error(), "ulimit -Hn") {
		t.Errorf("the error is %v", err)
	}
}

// limitedProcess starts a process that may have so many files open, which ends with the
// test, and returns its id.
func limitedProcess(t *testing.T, files int) int {
	t.Helper()
	command := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d && echo && exec cat", files))
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := input.Close(); err != nil {
			t.Error(err)
		}
		if err := command.Wait(); err != nil {
			t.Error(err)
		}
	})
	// It prints a line once it has the limit.
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return command.Process.Pid
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
