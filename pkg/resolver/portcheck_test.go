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
	"net/http"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// query queries the resolver as the controller does.
func (c *cluster) query(q portcheck.Query) portcheck.State {
	c.t.Helper()
	state, err := q.Send(resolvertest.Dial(c.t, strings.TrimPrefix(c.health, "http://")))
	if err != nil {
		c.t.Fatal(err)
	}
	return state
}

// TestResolverReportsWhichProxyPortsItServes queries as the controller does, also about a
// port of another ElastiService, about one on the shared port, and once it is deleted
// and created again.
func TestResolverReportsWhichProxyPortsItServes(t *testing.T) {
	port, shared := freePort(t), freePort(t)
	es, other := elastiService("cart", port), elastiService("till", shared)
	es.UID, other.UID = "cart-1", "till-1"
	c := newCluster(t, func(o *Options) { o.SharedPort, o.ClusterDomain = shared, "cluster.local" }, es, other)
	served := func(service string, uid types.UID, ports ...portcheck.Port) bool {
		t.Helper()
		q := portcheck.Query{Service: types.NamespacedName{Namespace: "shop", Name: service}, UID: uid, Ports: ports}
		return c.query(q) == portcheck.Accepting
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
		t.Error("a query is traffic")
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

// TestResolverAcceptsOnceItIsToBeInThePath has the watch of the resolver be behind: all
// that it knows says that a target is awake, and resolvers are out of the path. The
// controller is further, and has made the slice that is to list this one. Before that, a query
// with the UID of the ElastiService, which is no secret, does not open the port.
func TestResolverAcceptsOnceItIsToBeInThePath(t *testing.T) {
	port, shared := freePort(t), freePort(t)
	es, other := elastiService("cart", port), elastiService("till", shared)
	for _, s := range []*v1alpha1.ElastiService{es, other} {
		s.UID, s.Status.Mode = types.UID(s.Name), v1alpha1.ModeServe
	}
	c := newCluster(t, func(o *Options) {
		o.SharedPort, o.ClusterDomain = shared, "cluster.local"
		o.Drain.ServeGrace, o.Drain.PathTimeout = time.Nanosecond, time.Millisecond
	}, es, other)
	address := resolvertest.ListenHTTP(t, func(http.ResponseWriter, *http.Request) {})
	for _, test := range []struct {
		es    *v1alpha1.ElastiService
		port  int32
		serve func() bool
	}{
		{es, port, func() bool { status, _, _ := fetch(port, "/"); return status == http.StatusOK }},
		{other, shared, func() bool { return queryHost(t, "HTTP/1.1", shared, "till.shop.svc").StatusCode == http.StatusOK }},
	} {
		c.apply(slice(test.es, true, address))
		q := portcheck.Query{
			Service: types.NamespacedName{Namespace: "shop", Name: test.es.Name}, UID: test.es.UID,
			Ports: []portcheck.Port{{Service: 80, Proxy: test.port}},
		}
		// Until the pods are observed, clients are served.
		c.eventually(func() bool { return c.query(q) == portcheck.Listening })
		if test.serve() {
			t.Errorf("%s: a client is served while the resolver says that it only listens", test.es.Name)
		}
		q.Accept = true
		q.UID = "another"
		if state := c.query(q); state != portcheck.Unknown {
			t.Errorf("%s: the resolver is in state %d for an ElastiService that it does not know", test.es.Name, state)
		}
		q.UID = test.es.UID
		if state := c.query(q); state != portcheck.Listening || test.serve() {
			t.Errorf("%s: the resolver is in state %d, and has no resolver slice", test.es.Name, state)
		}
		c.apply(resolverSlice(test.es))
		// A result is used for a while.
		c.eventually(func() bool { return c.query(q) == portcheck.Accepting })
		if state := c.query(q); state != portcheck.Accepting {
			t.Errorf("%s: the resolver is in state %d, and is about to be in the path", test.es.Name, state)
		}
		if !test.serve() {
			t.Errorf("%s: a client is not served", test.es.Name)
		}
	}
}

// resolverSlice is the resolver slice of an ElastiService, before it lists any resolver.
func resolverSlice(es *v1alpha1.ElastiService) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: es.Namespace, Name: es.Name + "-resolver", Labels: map[string]string{
			discoveryv1.LabelServiceName: es.Spec.Service, discoveryv1.LabelManagedBy: v1alpha1.SliceManagedBy,
			v1alpha1.LabelRole: v1alpha1.RoleResolver,
		}, Annotations: map[string]string{v1alpha1.AnnotationOwner: es.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
}
