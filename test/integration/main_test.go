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
	"os"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment/environmenttest"
)

// shared is the environment of all tests. It is set before the first of them
// and does not change; each test has namespaces of its own in it.
var shared *environment.Environment

func TestMain(m *testing.M) {
	os.Exit(environmenttest.Run(m, &shared, environment.Start))
}
