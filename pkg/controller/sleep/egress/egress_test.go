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

package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

func guardOf(t *testing.T, options Options, entries ...string) *Guard {
	t.Helper()
	if entries != nil {
		list, err := Parse(entries)
		if err != nil {
			t.Fatal(err)
		}
		options.Allowed = list
	}
	return NewGuard(options)
}

// egressTests are lists of what may be reached, and what a trigger names.
var egressTests = map[string]struct {
	entries []string
	// host is what the trigger names, and address what it resolved to.
	host, address string
	allowed       bool
}{
	"any, without a list":                    {nil, "prometheus", "10.0.0.1:9090", true},
	"any, by the list":                       {[]string{"*"}, "prometheus", "10.0.0.1:9090", true},
	"nothing, by an empty list":              {[]string{}, "prometheus", "10.0.0.1:9090", false},
	"by name":                                {[]string{"prometheus.monitoring"}, "prometheus.monitoring", "10.0.0.1:9090", true},
	"by name, however it is written":         {[]string{"Prometheus.Monitoring."}, "prometheus.MONITORING.", "10.0.0.1:9090", true},
	"another name of the same address":       {[]string{"prometheus.monitoring"}, "prometheus.monitoring.svc", "10.0.0.1:9090", false},
	"by name and port":                       {[]string{"prometheus:9090"}, "prometheus", "10.0.0.1:9090", true},
	"another port":                           {[]string{"prometheus:9090"}, "prometheus", "10.0.0.1:9091", false},
	"by suffix":                              {[]string{"*.example.com"}, "a.b.example.com", "10.0.0.1:9090", true},
	"the suffix itself":                      {[]string{"*.example.com"}, "example.com", "10.0.0.1:9090", false},
	"a longer label":                         {[]string{"*.example.com"}, "badexample.com", "10.0.0.1:9090", false},
	"by suffix and port":                     {[]string{"*.example.com:443"}, "a.example.com", "10.0.0.1:80", false},
	"by address":                             {[]string{"10.0.0.1"}, "prometheus", "10.0.0.1:9090", true},
	"by CIDR":                                {[]string{"10.0.0.0/8"}, "prometheus", "10.1.2.3:9090", true},
	"by CIDR, mapped into IPv6":              {[]string{"10.0.0.0/8"}, "prometheus", "[::ffff:10.1.2.3]:9090", true},
	"by CIDR, translated":                    {[]string{"10.0.0.0/8"}, "prometheus", "[64:ff9b::10.1.2.3]:9090", true},
	"by CIDR and port":                       {[]string{"10.0.0.0/8:9090"}, "prometheus", "10.1.2.3:9091", false},
	"outside of the CIDR":                    {[]string{"10.0.0.0/8"}, "prometheus", "11.0.0.1:9090", false},
	"by IPv6 CIDR and port":                  {[]string{"[fd00::/8]:9090"}, "prometheus", "[fd00::1]:9090", true},
	"by IPv6 address":                        {[]string{"fd00::1"}, "prometheus", "[fd00::1]:80", true},
	"link-local":                             {nil, "metadata", "169.254.169.254:80", false},
	"link-local, listed":                     {[]string{"169.254.0.0/16", "*"}, "169.254.169.254", "169.254.169.254:80", false},
	"link-local, mapped into IPv6":           {nil, "metadata", "[::ffff:169.254.169.254]:80", false},
	"link-local, translated":                 {nil, "metadata", "[64:ff9b::a9fe:a9fe]:80", false},
	"link-local, by a name that is listed":   {[]string{"prometheus"}, "prometheus", "169.254.169.254:80", false},
	"link-local IPv6":                        {[]string{"fe80::/10"}, "x", "[fe80::1%eth0]:80", false},
	"unspecified":                            {nil, "x", "0.0.0.0:9090", false},
	"unspecified, listed":                    {[]string{"0.0.0.0/0"}, "x", "0.0.0.0:9090", false},
	"unspecified IPv6":                       {nil, "x", "[::]:9090", false},
	"this network":                           {nil, "x", "0.1.2.3:9090", false},
	"multicast":                              {nil, "x", "224.0.0.1:9090", false},
	"multicast IPv6":                         {nil, "x", "[ff02::1]:9090", false},
	"loopback":                               {nil, "localhost", "127.0.0.1:9090", false},
	"loopback, any allowed":                  {[]string{"*"}, "localhost", "127.0.0.1:9090", false},
	"loopback, all of IPv4 allowed":          {[]string{"0.0.0.0/0"}, "localhost", "127.0.0.1:9090", false},
	"loopback, by a name that is listed":     {[]string{"localhost"}, "localhost", "127.0.0.1:9090", false},
	"loopback IPv6":                          {nil, "localhost", "[::1]:9090", false},
	"loopback, listed":                       {[]string{"127.0.0.0/8"}, "localhost", "127.0.0.1:9090", true},
	"loopback, one address listed":           {[]string{"127.0.0.1:9090"}, "127.0.0.1", "127.0.0.1:9090", true},
	"loopback, another port listed":          {[]string{"127.0.0.1:9090"}, "127.0.0.1", "127.0.0.1:8080", false},
	"loopback, listed, mapped into IPv6":     {[]string{"127.0.0.1"}, "x", "[::ffff:127.0.0.1]:80", true},
	"metadata of a cloud":                    {[]string{"*"}, "x", "100.100.100.200:80", false},
	"metadata of a cloud, IPv6":              {nil, "x", "[fd00:ec2::254]:80", false},
	"the Kubernetes API":                     {nil, "kubernetes", "10.96.0.1:443", false},
	"the Kubernetes API, listed":             {[]string{"10.96.0.1"}, "kubernetes", "10.96.0.1:443", false},
	"another port of the Kubernetes API":     {nil, "node", "10.96.0.1:9090", true},
	"the Kubernetes API, by its name":        {[]string{"127.0.0.0/8"}, "localhost", "127.0.0.1:6443", false},
	"this server":                            {[]string{"127.0.0.0/8"}, "localhost", "127.0.0.1:8443", false},
	"this server, another loopback address":  {[]string{"127.0.0.0/8"}, "localhost", "127.1.2.3:8443", false},
	"nothing that can be read as an address": {nil, "x", "prometheus:9090", false},
}

func TestTriggersReachOnlyAllowedAddresses(t *testing.T) {
	for name, test := range egressTests {
		t.Run(name, func(t *testing.T) {
			guard := guardOf(t, Options{Forbidden: []string{"10.96.0.1:443", "localhost:6443"}, OwnPort: 8443}, test.entries...)
			if err := guard.check(t.Context(), test.host, test.address); (err == nil) != test.allowed || err != nil && !errors.Is(err, ErrNotAllowed) {
				t.Errorf("got %v, want allowed: %t", err, test.allowed)
			}
		})
	}
}

func TestOwnAddressesAreForbidden(t *testing.T) {
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	guard := guardOf(t, Options{OwnPort: 8443}, "*", "0.0.0.0/0", "::/0")
	for _, address := range own {
		ip, ok := canonicalOf(address)
		if !ok {
			t.Fatalf("the address %s of an interface cannot be read", address)
		}
		if err := guard.check(t.Context(), "x", netip.AddrPortFrom(ip, 8443).String()); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s: got %v, want it forbidden", address, err)
		}
	}
}

// apiServersSliceWith is the EndpointSlice of the Kubernetes API.
func apiServersSliceWith(port *int32, addresses ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: apiServersSlice},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: addresses}},
		Ports:      []discoveryv1.EndpointPort{{Port: port}},
	}
}

// The addresses of single API servers are none of the Service, and change while the
// server runs.
func TestAddressesOfAPIServersAreForbidden(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	host := fake.NewClientset(apiServersSliceWith(ptr.To[int32](6443), "192.0.2.1", "192.0.2.2"))
	guard := guardOf(t, Options{APIServers: NewAPIServers(host.DiscoveryV1(), clock)}, "*", "192.0.2.0/24", "2001:db8::/32")
	want := func(address string, allowed bool) {
		t.Helper()
		if err := guard.check(t.Context(), "prometheus", address); (err == nil) != allowed || err != nil && !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s: got %v, want allowed: %t", address, err, allowed)
		}
	}
	want("192.0.2.1:6443", false)
	want("192.0.2.2:6443", false)
	want("[::ffff:192.0.2.2]:6443", false)
	want("192.0.2.3:6443", true)
	want("192.0.2.1:9090", true)

	if err := host.Tracker().Update(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), apiServersSliceWith(nil, "2001:db8::1", "192.0.2.3"), metav1.NamespaceDefault); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(apiServersMaxAge))
	want("192.0.2.3:6443", false)
	want("[2001:db8::1]:443", false)
	want("192.0.2.1:6443", true)

	// They stay forbidden during an outage.
	informerstest.React(&host.Fake, "get", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("timeout")
	})
	clock.SetTime(clock.Now().Add(apiServersMaxAge))
	want("192.0.2.3:6443", false)
	want("192.0.2.1:6443", true)
}

func TestNoServerIsQueriedBeforeTheAddressesOfTheAPIServers(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	host := fake.NewClientset()
	requests := 0
	informerstest.React(&host.Fake, "get", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		requests++
		return requests == 1, nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), apiServersSlice, nil)
	})
	guard := guardOf(t, Options{APIServers: NewAPIServers(host.DiscoveryV1(), clock)})
	for range 3 {
		if err := guard.check(t.Context(), "prometheus", "192.0.2.1:6443"); !errors.Is(err, ErrAPIServersUnknown) {
			t.Errorf("got %v, want %v", err, ErrAPIServersUnknown)
		}
	}
	if requests != 1 {
		t.Errorf("%d requests in a moment", requests)
	}
	// A cluster whose API servers do not register themselves has no such object.
	clock.SetTime(clock.Now().Add(apiServersRetry))
	if err := guard.check(t.Context(), "prometheus", "192.0.2.1:6443"); err != nil {
		t.Error(err)
	}
}

func TestAllowListNamesWhatIsWrong(t *testing.T) {
	for _, text := range []string{"", "http://prometheus", "a b", "10.0.0.256", "10.0.0", "10.0.0.0/33", "::ffff:10.0.0.0/104", "prometheus:", "prometheus:0", "prometheus:65536", "*.", "**", "a.*.b", "[fd00::1", "[fd00::1]9090", "under_score"} {
		if _, err := Parse([]string{"prometheus", text}); err == nil || text != "" && !strings.Contains(err.Error(), text) {
			t.Errorf("%q: got %v, want an error that names it", text, err)
		}
	}
}

// A server that is allowed by its name gives no access to others behind its address.
func TestOnlyAllowedNamesAreSentToAServer(t *testing.T) {
	guard := guardOf(t, Options{}, "prometheus.example.com", "thanos.example.com", "10.0.0.0/8")
	for _, test := range []struct {
		server, alias string
		want          bool
	}{
		{"prometheus.example.com", "vault.example.com", false},
		{"prometheus.example.com", "10.0.0.1", false},
		{"prometheus.example.com", "thanos.example.com", true},
		{"10.0.0.1", "vault.example.com", true},
	} {
		if got := guard.AllowsAlias(test.server, test.alias, 443); got != test.want {
			t.Errorf("%s for %s: got %t, want %t", test.server, test.alias, got, test.want)
		}
	}
	if !guardOf(t, Options{}).AllowsAlias("prometheus.example.com", "vault.example.com", 443) {
		t.Error("without a list a name is not allowed")
	}
}

// What counts is the address that is connected to, at the moment that it is.
func TestNameThatResolvesToAForbiddenAddressIsNotDialed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	dial := func(guard *Guard) error {
		connection, err := guard.DialContext(context.WithoutCancel(t.Context()), "tcp", net.JoinHostPort("localhost", port))
		if err == nil {
			_ = connection.Close()
		}
		return err
	}
	if err := dial(guardOf(t, Options{}, "localhost")); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("got %v, want %v", err, ErrNotAllowed)
	}
	if err := dial(guardOf(t, Options{}, "127.0.0.0/8", "::1")); err != nil {
		t.Errorf("an address that is listed: %v", err)
	}
}

func FuzzAllowList(f *testing.F) {
	for _, seed := range []string{"*", "prometheus:9090", "*.example.com", "10.0.0.0/8:9090", "[fd00::/8]:9090", "fe80::1%eth0", "::ffff:1.2.3.4"} {
		f.Add(seed, "169.254.169.254:80")
	}
	f.Fuzz(func(t *testing.T, entry, address string) {
		list, err := Parse([]string{entry, "127.0.0.0/8"})
		if err != nil {
			return
		}
		guard := NewGuard(Options{Allowed: list, OwnPort: 8443})
		parsed, err := netip.ParseAddrPort(address)
		if guard.check(t.Context(), "prometheus", address) != nil || err != nil {
			return
		}
		if ip := canonical(parsed.Addr()); ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() || ip.IsLoopback() && parsed.Port() == 8443 {
			t.Errorf("the entry %q allows %s", entry, address)
		}
	})
}
