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
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	elastifake "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a resolver, and the API server that it watches.
type cluster struct {
	t      *testing.T
	elasti *elastifake.Clientset
	kube   *kubefake.Clientset
	health string
	stop   context.CancelFunc
	ended  chan error

	registry *prometheus.Registry
	// wake is called for each wake.
	wake  atomic.Pointer[func(*v1alpha1.WakeRequest) error]
	wakes atomic.Int32
}

// newCluster starts a resolver, and waits until it is ready.
func newCluster(t *testing.T, change func(*Options), objects ...runtime.Object) *cluster {
	t.Helper()
	c := startCluster(t, change, objects...)
	c.eventually(func() bool { return c.status("/readyz") == http.StatusOK })
	return c
}

func startCluster(t *testing.T, change func(*Options), objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{t: t, elasti: elastifake.NewClientset(objects...), kube: kubefake.NewClientset(), ended: make(chan error, 1), registry: prometheus.NewRegistry()}
	informerstest.React(&c.elasti.Fake, "create", "elastiservices/wake", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.wakes.Add(1)
		request := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.WakeRequest)
		if wake := c.wake.Load(); wake != nil {
			if err := (*wake)(request); err != nil {
				return true, nil, err
			}
		}
		return true, request, nil
	})
	health, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.health = "http://" + health.Addr().String()
	options := Options{
		Elasti: c.elasti, Kubernetes: c.kube, Registerer: c.registry, Logger: klog.Background(),
		BindAddress: "127.0.0.1", HealthListener: health,
		Limits:   Limits{HeldBytes: 1 << 30, HeaderBytes: 64 << 10},
		Timeouts: Timeouts{Header: time.Minute, Idle: time.Minute, Sniff: 20 * time.Millisecond},
		Drain:    Drain{Timeout: 20 * time.Second},
	}
	if change != nil {
		change(&options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	resolver, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	go func() { c.ended <- resolver.Run(ctx) }()
	var once sync.Once
	t.Cleanup(func() {
		once.Do(func() {
			cancel()
			if err := <-c.ended; err != nil {
				t.Errorf("the resolver ended with %v", err)
			}
		})
	})
	return c
}

func (c *cluster) eventually(condition func() bool) {
	c.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			c.t.Fatal("the condition did not come true in time")
		}
	}
}

// metric returns the value of a gauge that has one series.
func (c *cluster) metric(name string) float64 {
	c.t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// counter returns the value of a counter whose labels have these names and
// values, in pairs; 0 when there is none.
func (c *cluster) counter(name string, labels ...string) float64 {
	c.t.Helper()
	counter, _ := c.find(name, labels)
	return counter
}

// gauge is counter for gauges.
func (c *cluster) gauge(name string, labels ...string) float64 {
	c.t.Helper()
	_, gauge := c.find(name, labels)
	return gauge
}

func (c *cluster) find(name string, labels []string) (counter, gauge float64) {
	c.t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			has := map[string]string{}
			for _, label := range metric.GetLabel() {
				has[label.GetName()] = label.GetValue()
			}
			found := true
			for i := 0; i < len(labels); i += 2 {
				found = found && has[labels[i]] == labels[i+1]
			}
			if found {
				return metric.GetCounter().GetValue(), metric.GetGauge().GetValue()
			}
		}
	}
	return 0, 0
}

func (c *cluster) status(path string) int {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(c.health + path)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

// freePort returns a port that no process listens on.
func freePort(t *testing.T) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

func elastiService(name string, ports ...int32) *v1alpha1.ElastiService {
	es := &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       v1alpha1.ElastiServiceSpec{Service: name},
		Status:     v1alpha1.ElastiServiceStatus{Mode: v1alpha1.ModeProxy, PrivateService: "elasti-" + name + "-pvt-0"},
	}
	for i, port := range ports {
		es.Status.ProxyPorts = append(es.Status.ProxyPorts, v1alpha1.ProxyPort{Port: int32(80 + i), Name: fmt.Sprintf("p%d", i), ProxyPort: port})
	}
	return es
}

// slice lists pods of an ElastiService at addresses, all with the same port.
func slice(es *v1alpha1.ElastiService, ready bool, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: es.Namespace, Name: es.Name + "-slice", Labels: map[string]string{
			discoveryv1.LabelServiceName: es.Status.PrivateService, v1alpha1.LabelRole: v1alpha1.RolePrivate,
			discoveryv1.LabelManagedBy: sliceController,
		}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: es.Status.PrivateService, Controller: ptr.To(true)}}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, text := range addresses {
		address := netip.MustParseAddrPort(text)
		s.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("p0"), Port: ptr.To(int32(address.Port()))}}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address.Addr().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

func (c *cluster) apply(s *discoveryv1.EndpointSlice) {
	c.t.Helper()
	client := c.kube.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := client.Update(context.Background(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(context.Background(), s, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Error(err)
	}
}

func pod(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, body)
	})}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

func fetch(port int32, path string) (int, string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	response, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d%s", port, path), "", strings.NewReader("x"))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func TestHeldRequestWakesAndGetsItsResponse(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	c := newCluster(t, nil, es)
	address := pod(t)
	var failures atomic.Int32
	pending := make(chan int32, 100)
	wake := func(request *v1alpha1.WakeRequest) error {
		if request.Name != "cart" || request.Namespace != "shop" {
			t.Errorf("woke %s/%s", request.Namespace, request.Name)
		}
		// The first calls fail, as they do while the API server restarts.
		if failures.Add(1) < 3 {
			return apierrors.NewServiceUnavailable("restarting")
		}
		pending <- request.Spec.Pending
		go c.apply(slice(es, true, address))
		return nil
	}
	c.wake.Store(&wake)

	const clients = 20
	var requests sync.WaitGroup
	for i := range clients {
		requests.Go(func() {
			status, body, err := fetch(port, fmt.Sprintf("/%d", i))
			if want := fmt.Sprintf("POST /%d x", i); err != nil || status != 200 || body != want {
				t.Errorf("got %d %q %v, want %q", status, body, err, want)
			}
		})
	}
	requests.Wait()
	if reported := <-pending; reported < 1 || reported > clients {
		t.Errorf("the wake reported %d pending requests", reported)
	}
	if n := c.wakes.Load(); n > clients/2 {
		t.Errorf("%d requests made %d wake calls", clients, n)
	}
}

// The user of a namespace makes an EndpointSlice for the private Service whose endpoint is
// the pod of another, which a network policy closes to everything but resolvers.
//
// The controller leaves a slice alone that is being deleted: a finalizer would keep it.
func TestRequestsReachOnlyEndpointsOfTheEndpointSliceController(t *testing.T) {
	for name, forge := range map[string]func(*discoveryv1.EndpointSlice){
		"of another controller": func(forged *discoveryv1.EndpointSlice) { forged.Labels[discoveryv1.LabelManagedBy] = "a user" },
		"of no Service":         func(forged *discoveryv1.EndpointSlice) { forged.OwnerReferences = nil },
		"of another Service":    func(forged *discoveryv1.EndpointSlice) { forged.OwnerReferences[0].Name = "forged" },
		"kept by a finalizer": func(forged *discoveryv1.EndpointSlice) {
			forged.DeletionTimestamp, forged.Finalizers = ptr.To(metav1.Now()), []string{"example.com/keep"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			es := elastiService("cart", port)
			forged := slice(es, true, responding(t, "the pod of another"))
			forged.Name = "forged"
			forge(forged)
			c := newCluster(t, func(o *Options) {
				if _, err := o.Kubernetes.DiscoveryV1().EndpointSlices("shop").Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}, es)
			own := responding(t, "its own pod")
			wake := func(*v1alpha1.WakeRequest) error {
				go c.apply(slice(es, true, own))
				return nil
			}
			c.wake.Store(&wake)
			if status, body, err := fetch(port, "/"); err != nil || status != http.StatusOK || body != "its own pod" {
				t.Errorf("got %d %q %v", status, body, err)
			}
		})
	}
}

func TestServicesComeAndGo(t *testing.T) {
	first, second := freePort(t), freePort(t)
	cart := elastiService("cart", first)
	c := newCluster(t, nil, cart)
	c.apply(slice(cart, true, pod(t)))
	c.eventually(func() bool { status, _, _ := fetch(first, "/"); return status == 200 })

	// Another comes, and does not disturb the first.
	ctx := context.Background()
	till := elastiService("till", second)
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices("shop").Create(ctx, till, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.apply(slice(till, true, pod(t)))
	c.eventually(func() bool { status, _, _ := fetch(second, "/"); return status == 200 })

	// One ElastiService is deleted.
	c.deleteSlice("cart")
	if err := c.elasti.ElastiV1alpha1().ElastiServices("shop").Delete(ctx, "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { _, _, err := fetch(first, "/"); return err != nil })
	if status, _, err := fetch(second, "/"); status != 200 {
		t.Fatalf("the other service returns %d, %v", status, err)
	}
}

// Two statuses of an earlier version may name one proxy port. A resolver that starts
// serves the older ElastiService on it.
func TestProxyPortThatTwoNameIsThatOfTheOlder(t *testing.T) {
	proxyPort := freePort(t)
	created := func(name string, seconds int64) *v1alpha1.ElastiService {
		es := elastiService(name, proxyPort)
		es.CreationTimestamp = metav1.Unix(seconds, 0)
		es.Spec.ProbeResponse = []v1alpha1.ProbeResponseRule{{Response: v1alpha1.ProbeResponse{Status: http.StatusOK, Body: name}}}
		return es
	}
	newCluster(t, nil, created("a-younger-one", 2000), created("the-older-one", 1000))
	if got := do(t, &http.Transport{}, http.MethodGet, proxyPort); got.body != "the-older-one" {
		t.Errorf("got %d %q", got.StatusCode, got.body)
	}
}

// Clients of a Service whose port is not open could not connect, so that others
// have to take them.
func TestReadyOnlyWhenAllPortsAreOpen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := freePort(t)
	c := startCluster(t, nil, elastiService("taken", int32(taken.Addr().(*net.TCPAddr).Port)), elastiService("other", other))
	c.eventually(func() bool {
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", other))
		if err != nil {
			return false
		}
		return connection.Close() == nil
	})
	if status := c.status("/readyz"); status == http.StatusOK {
		t.Error("the resolver is ready, though a port is not open")
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return c.status("/readyz") == http.StatusOK })
}

func TestDrainFinishesHeldRequests(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	c := newCluster(t, nil, es)
	responded := make(chan string, 1)
	go func() {
		_, body, err := fetch(port, "/")
		if err != nil {
			body = err.Error()
		}
		responded <- body
	}()
	c.eventually(func() bool { return c.wakes.Load() > 0 })
	c.stop()
	c.eventually(func() bool { return c.status("/readyz") == http.StatusServiceUnavailable })
	if c.status("/healthz") != http.StatusOK {
		t.Error("a draining resolver is not healthy")
	}
	c.apply(slice(es, true, pod(t)))
	if body := <-responded; body != "POST / x" {
		t.Fatalf("got %q", body)
	}
}

// TestDrainLetsAStreamOfBytesGoOn ends a resolver with a connection on which something was
// said: it goes on until its client ends it. One on which nothing was ends at once.
func TestDrainLetsAStreamOfBytesGoOn(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	es.Status.ProxyPorts[0].AppProtocol = "tcp"
	c := newCluster(t, nil, es)
	c.apply(slice(es, true, resolvertest.Listen(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	busy := resolvertest.Dial(t, address)
	say := func(text string) {
		t.Helper()
		if _, err := io.WriteString(busy, text); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(busy, got); err != nil || string(got) != text {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	say("before")
	// A client that connects before the resolver has the pod would wake the target.
	silent := resolvertest.Dial(t, address)
	c.stop()
	if got, err := io.ReadAll(silent); len(got) > 0 {
		t.Errorf("a silent client got %q, %v", got, err)
	}
	say("after")
	busy.Close()
}

// TestDrainAcceptsConnectionsWhileEndpointSlicesListTheResolver ends a resolver
// while nothing takes it out of the slices, as when the controller is replaced at
// the same time.
func TestDrainAcceptsConnectionsWhileEndpointSlicesListTheResolver(t *testing.T) {
	const delay = 10 * time.Millisecond
	port := freePort(t)
	es := elastiService("cart", port)
	c := newCluster(t, func(o *Options) { o.Drain.Delay = delay }, es)
	c.apply(slice(es, true, pod(t)))
	listing := slice(es, true, fmt.Sprintf("127.0.0.1:%d", port))
	listing.Name = "to-resolvers"
	listing.Labels = map[string]string{discoveryv1.LabelServiceName: es.Spec.Service, v1alpha1.LabelRole: v1alpha1.RoleResolver}
	c.apply(listing)
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == 200 })

	c.stop()
	c.eventually(func() bool { return c.status("/readyz") == http.StatusServiceUnavailable })
	for began := time.Now(); time.Since(began) < 20*delay; {
		if status, _, err := fetch(port, "/"); status != 200 {
			t.Fatalf("a resolver that is listed returns %d, %v", status, err)
		}
	}
	listing.Endpoints[0].Conditions.Ready = ptr.To(false)
	c.apply(listing)
	c.eventually(func() bool { return !listening(t, port) })
}

// TestDrainAcceptsConnectionsWhileTheyCome ends a resolver to which a slow
// kube-proxy still leads.
func TestDrainAcceptsConnectionsWhileTheyCome(t *testing.T) {
	const delay = time.Second
	port := freePort(t)
	es := elastiService("cart", port)
	c := newCluster(t, func(o *Options) { o.Drain.Delay = delay }, es)
	c.apply(slice(es, true, pod(t)))
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == 200 })

	c.stop()
	c.eventually(func() bool { return c.status("/readyz") == http.StatusServiceUnavailable })
	// Often enough that one late connection is no pause, and not so often that
	// the ports of clients are used up.
	comes := time.NewTicker(delay / 20)
	defer comes.Stop()
	for began := time.Now(); time.Since(began) < 3*delay; {
		if status, _, err := fetch(port, "/"); status != 200 {
			t.Fatalf("%s after its end began, the resolver responds with %d, %v", time.Since(began), status, err)
		}
		<-comes.C
	}
	c.eventually(func() bool { return !listening(t, port) })
}

// listening reports whether a port is listened on, without connecting to it.
func listening(t *testing.T, port int32) bool {
	t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return true
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return false
}

// TestDrainEndsWithoutPermissionToRead ends a resolver whose permissions are
// deleted with it, as when everything is uninstalled.
func TestDrainEndsWithoutPermissionToRead(t *testing.T) {
	port := freePort(t)
	c := newCluster(t, nil, elastiService("cart", port))
	informerstest.React(&c.kube.Fake, "list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "", errors.New("no role allows it"))
	})
	c.stop()
	c.eventually(func() bool {
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			connection.Close()
		}
		return err != nil
	})
}

func TestSharedPortTellsServicesApart(t *testing.T) {
	port := freePort(t)
	cart, till := elastiService("cart", port), elastiService("till", port)
	c := newCluster(t, func(o *Options) { o.SharedPort, o.ClusterDomain = port, "cluster.local" }, cart, till)
	address := pod(t)
	wake := func(request *v1alpha1.WakeRequest) error {
		go c.apply(slice(map[string]*v1alpha1.ElastiService{"cart": cart, "till": till}[request.Name], true, address))
		return nil
	}
	c.wake.Store(&wake)
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	// All on one connection, as a proxy in front may.
	for host, want := range map[string]int{
		"cart.shop": 200, "till.shop.svc.cluster.local:80": 200, "cart.shop.svc": 200,
		"cart.other": 421, "www.example.com": 421, "cart.shop:81": 421,
	} {
		request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s gets %d, want %d", host, response.StatusCode, want)
		}
	}
}
