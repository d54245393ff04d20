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

package resolver

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// TestResolverTellsWhichProxyPortsItServes asks as the controller does, also about a
// port of another ElastiService, about one on the shared port, and once it is deleted
// and created again.
func TestResolverTellsWhichProxyPortsItServes(t *testing.T) {
	port, shared := freePort(t), freePort(t)
	es, other := elastiService("cart", port), elastiService("till", shared)
	es.UID, other.UID = "cart-1", "till-1"
	c := newCluster(t, func(o *Options) { o.SharedPort, o.ClusterDomain = shared, "cluster.local" }, es, other)
	served := func(service string, uid types.UID, ports ...portcheck.Port) bool {
		t.Helper()
		q := portcheck.Question{Service: types.NamespacedName{Namespace: "shop", Name: service}, UID: uid, Ports: ports}
		all, err := q.Ask(resolvertest.Dial(t, strings.TrimPrefix(c.health, "http://")))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	for _, test := range []struct {
		service string
		uid     types.UID
		port    portcheck.Port
		want    bool
	}{
		{"cart", "cart-1", portcheck.Port{Service: 80, Proxy: port}, true},
		{"cart", "cart-1", portcheck.Port{Service: 81, Proxy: port}, false},
		{"cart", "cart-1", portcheck.Port{Service: 80, Proxy: port + 1}, false},
		{"cart", "cart-2", portcheck.Port{Service: 80, Proxy: port}, false},
		{"till", "till-1", portcheck.Port{Service: 80, Proxy: shared}, true},
		{"till", "till-2", portcheck.Port{Service: 80, Proxy: shared}, false},
		{"cart", "till-1", portcheck.Port{Service: 80, Proxy: shared}, false},
		{"till", "till-1", portcheck.Port{Service: 80, Proxy: port}, false},
	} {
		if got := served(test.service, test.uid, test.port); got != test.want {
			t.Errorf("%+v is served: %t", test, got)
		}
	}
	if c.wakes.Load() != 0 || c.metric("elasti_resolver_connections") != 0 {
		t.Error("a question is traffic")
	}
	client := c.elasti.ElastiV1alpha1().ElastiServices("shop")
	if err := client.Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	es.UID = "cart-2"
	if _, err := client.Create(t.Context(), es, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return served("cart", "cart-2", portcheck.Port{Service: 80, Proxy: port}) })
	if served("cart", "cart-1", portcheck.Port{Service: 80, Proxy: port}) {
		t.Error("the port is served for what is deleted")
	}
}
