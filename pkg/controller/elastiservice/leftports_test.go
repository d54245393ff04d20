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

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// The claims of what was left are not kept by a restart before they are released: the ports
// go to others.
func TestProxyPortsOfALeftNamespaceAreReleasedByTheNextProcess(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.ProxyPortRange = utilnet.PortRange{Base: 10000, Size: 2}
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	stop()
	c.options.Namespaces = []string{blog}
	stop = c.start()
	c.eventuallyReleased("cart")
	stop()
	if stored := c.claims.Stored(); len(stored) != 2 {
		t.Fatalf("the claims %v are stored, want 2 of the left namespace", stored)
	}
	c.createInBlog()
	c.start()
	c.eventuallyPost("both proxy ports, of 2 that there are", func(post *v1alpha1.ElastiService) bool { return len(post.Status.ProxyPorts) == 2 })
}
