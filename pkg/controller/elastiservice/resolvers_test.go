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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers/resolverstest"
)

// withHealthPort gives the slice of the resolvers the port that they have.
func (c *cluster) withHealthPort() {
	c.t.Helper()
	slice, err := c.host.DiscoveryV1().EndpointSlices("elasti-system").Get(c.t.Context(), "elasti-resolver-abcde", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	slice.Ports = []discoveryv1.EndpointPort{
		{Name: ptr.To("metrics"), Port: ptr.To[int32](8081), Protocol: ptr.To(corev1.ProtocolTCP)},
		{Name: ptr.To(resolvers.HealthPortName), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)},
	}
	c.create(slice)
}

// eventuallyListed waits until the resolver slice of a Service lists addresses.
func (c *cluster) eventuallyListed(service string, want ...string) {
	c.t.Helper()
	c.eventually(func() string {
		var listed []string
		for _, slice := range c.resolverSlices(service) {
			for _, endpoint := range slice.Endpoints {
				listed = append(listed, endpoint.Addresses...)
			}
		}
		if strings.Join(listed, " ") != strings.Join(want, " ") {
			return "the slice lists " + strings.Join(want, " ") + ", it lists " + strings.Join(listed, " ")
		}
		return ""
	})
}

// Kubernetes says all the time that both resolvers are ready.
func TestResolverWhoseProcessEndedIsLeftOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.withHealthPort()
	first, second := resolverstest.StartProcess(t, "127.0.0.1:0"), resolverstest.StartProcess(t, "127.0.0.1:0")
	address := second.Address()
	c.options.DialResolver = resolverstest.DialProcesses(map[string]string{"10.0.0.1": first.Address(), "10.0.0.2": address})
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")

	second.Kill()
	c.eventuallyListed("cart", "10.0.0.1")
	resolverstest.StartProcess(t, address)
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")
}
