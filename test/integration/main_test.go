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

// Package integration tests elasti-apiserver as a process behind a real
// kube-apiserver, with the manifests that users deploy.
//
// It knows nothing of nodes: pods are objects that nothing runs. Begin with fixture_test.go.
package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// shared is the environment of all tests. It is set before the first of them
// and does not change; each test has namespaces of its own in it.
var shared *environment.Environment

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx := context.Background()
	var err error
	if shared, err = environment.Start(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "starting the test environment: %v\n", err)
		return 1
	}
	code := m.Run()
	if err := shared.Stop(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "stopping the test environment: %v\n", err)
		code = 1
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the logs of the test environment are in %s\n", shared.Directory)
		return code
	}
	if err := shared.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
