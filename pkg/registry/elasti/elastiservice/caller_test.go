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

package elastiservice

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestCallersOfWakesAreNamed(t *testing.T) {
	for want, info := range map[string]*user.DefaultInfo{
		"user alice":       {Name: "alice"},
		"elasti-apiserver": {Name: user.APIServerUser},
		"ServiceAccount elasti-system/elasti-resolver, pod elasti-resolver-x": {
			Name:  "system:serviceaccount:elasti-system:elasti-resolver",
			Extra: map[string][]string{"authentication.kubernetes.io/pod-name": {"elasti-resolver-x"}},
		},
		"ServiceAccount shop/cron": {Name: "system:serviceaccount:shop:cron"},
	} {
		if got := callerOf(genericapirequest.WithUser(t.Context(), info)); got != want {
			t.Errorf("%+v is called %q, want %q", info, got, want)
		}
	}
	if got := callerOf(t.Context()); got == "" {
		t.Error("a client that is not known has no name")
	}
}
