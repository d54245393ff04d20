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

package resolvers

import (
	"context"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers/resolverstest"
)

func TestWithoutAnyResolverProcessTheSliceStaysAsItIs(t *testing.T) {
	t.Parallel()
	one, other := resolverstest.StartProcess(t, "127.0.0.1:0"), resolverstest.StartProcess(t, "127.0.0.1:0")
	changes := make(chan struct{}, 100)
	p := NewLiveness(resolverstest.DialProcesses(map[string]string{"10.0.0.1": one.Address(), "10.0.0.2": other.Address()}),
		func(keep func()) { go keep() }, func() { changes <- struct{}{} })
	endpoints := p.watchBoth(t)
	eventually(t, "both are watched", func() bool { return one.Connected() && other.Connected() })
	one.Kill()
	<-changes
	if alive := p.Alive(endpoints); len(alive) != 1 || alive[0].Addresses[0] != "10.0.0.2" {
		t.Errorf("alive are %+v", alive)
	}
	other.Kill()
	<-changes
	if alive := p.Alive(endpoints); len(alive) != 2 {
		t.Errorf("alive are %+v although none is", alive)
	}
}

func TestOnlyARefusedConnectionMeansThatAResolverIsDead(t *testing.T) {
	t.Parallel()
	quiet := resolverstest.StartProcess(t, "127.0.0.1:0")
	p := NewLiveness(resolverstest.DialProcesses(map[string]string{"10.0.0.1": quiet.Address()}),
		func(keep func()) { go keep() }, func() { t.Error("something changed") })
	endpoints := p.watchBoth(t)
	// A connection that requests nothing is closed by and by.
	for range 3 {
		eventually(t, "it is connected again", quiet.Connected)
		quiet.HangUp()
	}
	eventually(t, "it is connected again", quiet.Connected)
	if alive := p.Alive(endpoints); len(alive) != 2 {
		t.Errorf("alive are %+v, but both accept connections", alive)
	}
}

// waitTimeout is how long a test waits for what must come. It says nothing about how
// fast it comes.
const waitTimeout = 20 * time.Second

// watchBoth watches two resolvers until the test ends.
func (l *Liveness) watchBoth(t *testing.T) []discoveryv1.Endpoint {
	t.Helper()
	conditions := discoveryv1.EndpointConditions{Ready: ptr.To(true)}
	endpoints := []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.1"}, Conditions: conditions}, {Addresses: []string{"10.0.0.2"}, Conditions: conditions},
	}
	l.Watch(t.Context(), []*discoveryv1.EndpointSlice{{
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(HealthPortName), Port: ptr.To[int32](8080)}},
		Endpoints: endpoints,
	}})
	return endpoints
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, waitTimeout, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("still missing: %s", what)
	}
}
