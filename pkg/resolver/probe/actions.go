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

package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// userAgent begins as that of the kubelet does, so that applications which
// recognize the kubelet's probes recognize these.
const userAgent = "kube-probe/elasti"

const (
	// maxProbeBody bounds how much of a response body is read.
	maxProbeBody = 10 << 10
	// maxProbeHeader bounds the headers of a response, and maxProbeMessage the
	// message of a gRPC response. A probe fails when they are larger.
	maxProbeHeader  = 64 << 10
	maxProbeMessage = 10 << 10
)

// Target is one probe of one address of a pod.
type Target struct {
	Address netip.Addr
	Action  *v1alpha1.ReadinessProbeAction
}

// Run runs a probe once, as the kubelet does, and returns nil when it succeeds.
func Run(ctx context.Context, target Target) error {
	switch {
	case target.Action.HTTPGet != nil:
		return probeHTTP(ctx, target.Address, target.Action.HTTPGet)
	case target.Action.GRPC != nil:
		return probeGRPC(ctx, target.Address, target.Action.GRPC)
	case target.Action.TCPSocket != nil:
		return probeTCP(ctx, target.Address, target.Action.TCPSocket)
	}
	return errors.New("the probe has no action")
}

func join(address netip.Addr, port int32) netip.AddrPort {
	return netip.AddrPortFrom(address, uint16(port))
}

func probeTCP(ctx context.Context, address netip.Addr, action *v1alpha1.TCPSocketAction) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", join(address, action.Port).String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// httpClient opens a connection for each probe, because a starting pod may never
// respond on one that it has accepted. It follows no redirect: the response that
// redirects is the result.
var httpClient = &http.Client{
	Transport: &http.Transport{
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxProbeHeader,
		// The kubelet does not verify certificates either: a pod cannot have one
		// for its address.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func probeHTTP(ctx context.Context, address netip.Addr, action *v1alpha1.HTTPGetAction) error {
	target, err := url.Parse(action.Path)
	if err != nil {
		// The kubelet uses such a path unchanged.
		target = &url.URL{Path: action.Path}
	}
	target.Scheme = "http"
	if strings.EqualFold(action.Scheme, "HTTPS") {
		target.Scheme = "https"
	}
	target.Host = join(address, action.Port).String()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return fmt.Errorf("creating the request of a probe: %w", err)
	}
	request.Header.Set("User-Agent", userAgent)
	request.Header.Set("Accept", "*/*")
	for i, header := range action.HTTPHeaders {
		switch {
		case strings.EqualFold(header.Name, "Host"):
			request.Host = header.Value
		case firstOf(action.HTTPHeaders, i):
			request.Header.Set(header.Name, header.Value)
		default:
			request.Header.Add(header.Name, header.Value)
		}
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	// Some servers log an error when the body is not read.
	if _, err := io.CopyN(io.Discard, response.Body, maxProbeBody); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the response to a probe: %w", err)
	}
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("the probe failed with status code %d", response.StatusCode)
	}
	return nil
}

// firstOf reports whether the ith header is the first of its name. The first one
// replaces the default header of that name; the others are added.
func firstOf(headers []v1alpha1.HTTPHeader, i int) bool {
	for _, before := range headers[:i] {
		if strings.EqualFold(before.Name, headers[i].Name) {
			return false
		}
	}
	return true
}

func probeGRPC(ctx context.Context, address netip.Addr, action *v1alpha1.GRPCAction) error {
	conn, err := grpc.NewClient("passthrough:///"+join(address, action.Port).String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(userAgent),
		grpc.WithMaxHeaderListSize(maxProbeHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxProbeMessage)),
		grpc.WithNoProxy())
	if err != nil {
		return fmt.Errorf("creating the gRPC client of a probe: %w", err)
	}
	defer conn.Close()
	response, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: action.Service})
	if err != nil {
		return err
	}
	if response.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the probe failed with status %s", response.GetStatus())
	}
	return nil
}
