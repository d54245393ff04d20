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
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// bytesOptions are those of an application with a port for each appProtocol that
// makes a connection a byte stream, besides the one for HTTP.
func bytesOptions() cluster.ApplicationOptions {
	ports := []corev1.ServicePort{{Name: "http", Port: portHealth, TargetPort: intstr.FromString("http")}}
	for i, protocol := range []string{"tcp", "postgresql", "redis"} {
		ports = append(ports, corev1.ServicePort{
			Name: protocol, Port: int32(portEcho + i), TargetPort: intstr.FromInt32(8084), AppProtocol: ptr.To(protocol),
		})
	}
	return cluster.ApplicationOptions{Arguments: []string{"-protocols"}, ServicePorts: ports}
}

// TestPortChecksOfTheControllerWakeNothing creates an ElastiService for ports whose connections are byte
// streams, and replaces the resolvers. Both times the controller has to check the ports of
// the resolvers.
func TestPortChecksOfTheControllerWakeNothing(t *testing.T) {
	s := newScene(t)
	observer := s.observe()
	app := s.NewApplication(s.namespace, bytesOptions())
	s.checkStaysAsleep(app, observer, func() {
		s.check(app.Create(s.ctx))
		s.check(app.AwaitAsleep(s.ctx))
		s.check(app.AwaitResolverSlice(s.ctx, true))
		before := s.awaitSliceFollowsResolvers(app, 2)
		s.restart(resolverDeployment)
		_, err := s.AwaitEndpointSlices(s.ctx, app.Namespace, app.Name, "the slice lists none of the previous resolvers", func(found []*discoveryv1.EndpointSlice) bool {
			now := readyResolvers(found)
			return len(now) == len(before) && !slices.ContainsFunc(now, func(address string) bool { return slices.Contains(before, address) })
		})
		s.check(err)
		s.rest(2 * time.Second)
	})
}

// TestHealthCheckThatOnlyConnectsDoesNotWake connects without sending a byte, as TCP health
// checks of load balancers do.
func TestHealthCheckThatOnlyConnectsDoesNotWake(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	observer := s.observe()
	app := s.asleep(bytesOptions())
	s.checkStaysAsleep(app, observer, func() {
		for range 3 {
			for _, port := range []int{portHealth, portEcho, portEcho + 1, portEcho + 2} {
				conn, err := (&net.Dialer{}).DialContext(s.ctx, "tcp", net.JoinHostPort(app.Address, strconv.Itoa(port)))
				s.check(err)
				s.rest(300 * time.Millisecond)
				s.check(conn.Close())
			}
		}
		s.rest(2 * time.Second)
	})
	s.get(app, "/")
}
