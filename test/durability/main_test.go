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

// Package durability tests that no write that was acknowledged is lost, and that no other
// one is carried out by halves, while processes are killed under a load of writes: the
// server, the members of its etcd, and kube-apiserver of the host cluster. All are real, as
// is the way through the aggregator.
//
// It knows nothing of how ElastiServices are stored, but by the flags of the server, and
// nothing of machines that lose power: what a killed process has written to a file is there.
// Begin with load_test.go.
package durability

import (
	"flag"
	"os"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment/environmenttest"
)

var (
	kills    = flag.Int("kills", 50, "how often the server is killed for each storage")
	restarts = flag.Int("restarts", 10, "how often kube-apiserver of the host cluster is restarted")
)

// shared is the environment of all tests. It is set before the first of them and does not
// change.
var shared *environment.Environment

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(environmenttest.Run(m, &shared, environment.StartAsDeployed))
}
