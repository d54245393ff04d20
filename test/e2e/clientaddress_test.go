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
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// TestPodsLearnTheAddressOfTheClient sends an HTTP/1.1 request with a forged
// X-Forwarded-For header, and connects to a TCP port, asleep and awake.
func TestPodsLearnTheAddressOfTheClient(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{
		Arguments: []string{"-protocols"},
		ServicePorts: []corev1.ServicePort{
			{Name: "http", Port: portHealth, TargetPort: intstr.FromString("http")},
			{Name: "mirror", Port: portMirror, TargetPort: intstr.FromInt32(8082)},
			{Name: "echo", Port: portEcho, TargetPort: intstr.FromInt32(8084), AppProtocol: ptr.To("tcp")},
		},
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.Proxy = &v1alpha1.ProxySpec{
				Policy:        v1alpha1.ProxyAlways,
				ClientAddress: &v1alpha1.ClientAddressSpec{Header: v1alpha1.ClientAddressXForwardedFor, ProxyProtocol: true},
			}
		},
	})
	for _, phase := range []string{"asleep", "awake"} {
		resolver := s.resolversOf(app)[0]
		headers, client := s.mirrored(resolver)
		if want := "X-Forwarded-For: 203.0.113.7, " + client.Addr().String() + "\r\n"; !strings.Contains(headers, want) {
			t.Errorf("%s, the application is sent\n%s, want %q in it", phase, headers, want)
		}
		if from := s.proxiedFrom(resolver); from != client.Addr() {
			t.Errorf("%s, a connection is said to be from %s, want %s", phase, from, client.Addr())
		}
	}
}

// mirrored returns the headers of a request as the application received them, and the
// address that it was sent from.
func (s *scene) mirrored(h *host) (string, netip.AddrPort) {
	s.Helper()
	var from netip.AddrPort
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			from = conn.LocalAddr().(*net.TCPAddr).AddrPort()
		}
		return conn, err
	}}
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, h.url(portMirror, "/"), nil)
	s.check(err)
	request.Header.Set("X-Forwarded-For", "203.0.113.7")
	response, err := transport.RoundTrip(request)
	s.check(err)
	headers, err := io.ReadAll(response.Body)
	s.check(errors.Join(err, response.Body.Close(), expectStatus(response, http.StatusOK)))
	return string(headers), from
}

// proxiedFrom returns the IPv4 address in the PROXY protocol header that the application
// received first.
func (s *scene) proxiedFrom(h *host) netip.Addr {
	s.Helper()
	conn, err := h.dial(s.ctx, portEcho)
	s.check(err)
	defer conn.Close()
	const said = "\x00said"
	_, err = io.WriteString(conn, said)
	s.check(errors.Join(err, conn.CloseWrite()))
	echoed, err := io.ReadAll(conn)
	s.check(err)
	const start, addresses = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", 12
	header, found := strings.CutSuffix(string(echoed), said+goodbye)
	if !found || !strings.HasPrefix(header, start) || len(header) != len(start)+addresses {
		s.Fatalf("the application got %q", echoed)
	}
	from, _ := netip.AddrFromSlice([]byte(header[len(start):][:4]))
	return from
}
