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

package e2e

import (
	"strings"
	"sync"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func TestRequestAtZeroWakesTheApplicationAndTrafficReturnsToIt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	s.checkReplicas(app, 0)

	s.step("request from outside of the cluster gets the application's response", func(s *scene) {
		s.checkPeer(s.get(app, "/first"), true)
	})
	s.step("replicas went from 0 to 1", func(s *scene) {
		s.checkReplicas(app, 1)
	})
	s.step("mode is serve", func(s *scene) {
		s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	})
	s.step("resolver slice is deleted", func(s *scene) {
		s.check(app.AwaitResolverSlice(s.ctx, false))
	})
	s.step("new connections go to the pod directly", func(s *scene) {
		s.awaitDirect(app)
	})
	s.step("scaled to zero by hand it is in mode proxy again", func(s *scene) {
		s.check(app.Sleep(s.ctx))
		s.check(app.AwaitResolverSlice(s.ctx, true))
		s.check(app.AwaitReachable(s.ctx))
		s.checkReplicas(app, 0)
	})
	s.step("the next request works again", func(s *scene) {
		s.checkPeer(s.get(app, "/second"), true)
		s.checkReplicas(app, 1)
	})
}

func TestRequestFromAPodByDNSNameGetsItsResponse(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	output, err := s.GetFromPod(s.ctx, s.namespace, "http://"+app.Name+"."+s.namespace+".svc/by-name")
	s.check(err)
	if !strings.HasPrefix(output, "200 OK\nhello from "+app.Name+"-") {
		t.Fatalf("the client in a pod printed %q", output)
	}
	s.checkReplicas(app, 1)
}

func TestFiftyClientsAtZeroAllGetResponses(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})

	const clients = 50
	responses, failures := make([]*cluster.Response, clients), make([]error, clients)
	var ended sync.WaitGroup
	for i := range clients {
		ended.Go(func() { responses[i], failures[i] = cluster.Get(s.ctx, app.URL("/together")) })
	}
	ended.Wait()
	for i := range clients {
		if failures[i] != nil {
			t.Errorf("client %d: %v", i, failures[i])
			continue
		}
		if err := responses[i].FromApplication(app.Name); err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	}
	s.checkReplicas(app, 1)
}
