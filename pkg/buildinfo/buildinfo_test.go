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

package buildinfo

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/component-base/version"
)

func TestTheMetricNamesTheBuild(t *testing.T) {
	info := version.Get()
	if info.GitVersion == "" || info.GoVersion != runtime.Version() {
		t.Fatalf("the build is %+v", info)
	}
	want := fmt.Sprintf(`
# HELP example_build_info Always 1. The labels say which build runs: the version, the commit of Git that it was built from, and the version of Go.
# TYPE example_build_info gauge
example_build_info{commit=%q,go_version=%q,version=%q} 1
`, info.GitCommit, info.GoVersion, info.GitVersion)
	if err := testutil.CollectAndCompare(NewMetric("example_build_info"), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
