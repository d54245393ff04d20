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

package http2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server with one service, on loopback.
type fixture struct {
	t       *testing.T
	service *service.Service
	server  *Server
	address string
	budget  *memory.Budget
	conns   atomic.Int32

	mu sync.Mutex
	// find is destination.Fixed where it is nil.
	find destination.Find
	// account is that of the service where it is nil.
	account *memory.Account
	records []accesslog.Record
}

func newFixture(t *testing.T, change func(*service.Config)) *fixture {
	t.Helper()
	return newFixtureWith(t, change, func(*service.Options) {})
}

func newFixtureWith(t *testing.T, change func(*service.Config), changeOptions func(*service.Options)) *fixture {
	t.Helper()
	config := &service.Config{Mode: v1alpha1.ModeProxy, HoldTimeout: 30 * time.Second, Limits: hold.Limits{MaxPending: 100}}
	if change != nil {
		change(config)
	}
	f := &fixture{t: t, budget: memory.NewBudget(memory.Limits{Process: 1 << 30})}
	options := service.Options{
		Namespace: "shop", Name: "cart", PublicService: "cart",
		Config: config, Budget: f.budget, Logger: klog.Background(),
		Finish: func(record *accesslog.Record) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.records = append(f.records, *record)
		},
	}
	changeOptions(&options)
	f.service = service.New(options)
	f.server = New(Options{Fallback: &fallback.Policy{PassiveUserAgents: []string{"kube-probe/", "Monitor "}}, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.conns.Add(1)
			running.Go(func() {
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				f.mu.Lock()
				find, account := f.find, f.account
				f.mu.Unlock()
				if account == nil {
					account = f.service.Memory()
				}
				if find == nil {
					find = destination.Fixed(f.service, service.Port{Number: 80})
				}
				f.server.Serve(ctx, conn, nil, account, find)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		f.service.Close()
		cancel()
		running.Wait()
	})
	return f
}

func (f *fixture) pods(addresses ...string) {
	var pods []endpoint.Description
	for _, address := range addresses {
		at := netip.MustParseAddrPort(address)
		pods = append(pods, endpoint.Description{
			ID: address, Name: address, Addresses: []netip.Addr{at.Addr()},
			Ports: map[string]uint16{"": at.Port()}, Ready: true,
		})
	}
	f.service.SetPods(pods)
}

func (f *fixture) eventually(condition func() bool) {
	f.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			f.t.Fatal("the condition did not come true in time")
		}
	}
}

func (f *fixture) held(n int) {
	f.t.Helper()
	f.eventually(func() bool { return f.service.Queue().Held() == n })
}

// ended returns the records of n streams, once that many have ended.
func (f *fixture) ended(n int) []accesslog.Record {
	f.t.Helper()
	var records []accesslog.Record
	f.eventually(func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		records = slices.Clone(f.records)
		return len(records) >= n
	})
	return records
}

// client returns an HTTP client that speaks h2c with prior knowledge.
func (f *fixture) client() *http.Client {
	transport := &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, address)
		},
	}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// httpPod serves a handler in h2c.
func httpPod(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// testService is a gRPC service with each kind of call.
type testService struct {
	testpb.UnimplementedTestServiceServer
}

func payload(size int32) *testpb.Payload { return &testpb.Payload{Body: make([]byte, size)} }

func (testService) UnaryCall(ctx context.Context, request *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if wanted := request.GetResponseStatus(); wanted != nil {
		return nil, status.Error(codes.Code(wanted.GetCode()), wanted.GetMessage())
	}
	if fields, ok := metadata.FromIncomingContext(ctx); ok {
		if err := grpc.SetTrailer(ctx, metadata.MD{"echo": fields.Get("echo")}); err != nil {
			return nil, err
		}
	}
	return &testpb.SimpleResponse{Payload: payload(request.GetResponseSize())}, nil
}

func (testService) StreamingOutputCall(request *testpb.StreamingOutputCallRequest, stream testpb.TestService_StreamingOutputCallServer) error {
	for _, parameters := range request.GetResponseParameters() {
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: payload(parameters.GetSize())}); err != nil {
			return err
		}
	}
	return nil
}

func (testService) StreamingInputCall(stream testpb.TestService_StreamingInputCallServer) error {
	var sum int32
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: sum})
		}
		if err != nil {
			return err
		}
		sum += int32(len(request.GetPayload().GetBody()))
	}
}

func (testService) FullDuplexCall(stream testpb.TestService_FullDuplexCallServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: request.GetPayload()}); err != nil {
			return err
		}
	}
}

func grpcPod(t *testing.T) string {
	t.Helper()
	return grpcPodWith(t, testService{})
}

func grpcPodWith(t *testing.T, implementation testpb.TestServiceServer) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	testpb.RegisterTestServiceServer(server, implementation)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return listener.Addr().String()
}

func (f *fixture) grpc() testpb.TestServiceClient {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+f.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// grpcCalls are one for each kind of call.
var grpcCalls = map[string]func(context.Context, testpb.TestServiceClient) error{
	"unary": func(ctx context.Context, client testpb.TestServiceClient) error {
		var trailer metadata.MD
		ctx = metadata.AppendToOutgoingContext(ctx, "echo", "hello")
		response, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 100_000, Payload: payload(200_000)}, grpc.Trailer(&trailer))
		if err == nil && (len(response.GetPayload().GetBody()) != 100_000 || fmt.Sprint(trailer.Get("echo")) != "[hello]") {
			err = fmt.Errorf("got %d bytes, trailer %v", len(response.GetPayload().GetBody()), trailer)
		}
		return err
	},
	"an error": func(ctx context.Context, client testpb.TestServiceClient) error {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: int32(codes.AlreadyExists), Message: "ça existe: 100%"}})
		if got := status.Convert(err); got.Code() != codes.AlreadyExists || got.Message() != "ça existe: 100%" {
			return fmt.Errorf("got %w", err)
		}
		return nil
	},
	"server streaming": func(ctx context.Context, client testpb.TestServiceClient) error {
		request := &testpb.StreamingOutputCallRequest{}
		for range 50 {
			request.ResponseParameters = append(request.ResponseParameters, &testpb.ResponseParameters{Size: 10_000})
		}
		stream, err := client.StreamingOutputCall(ctx, request)
		if err != nil {
			return err
		}
		for range 50 {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("the end is %w", err)
		}
		return nil
	},
	"client streaming": func(ctx context.Context, client testpb.TestServiceClient) error {
		stream, err := client.StreamingInputCall(ctx)
		if err != nil {
			return err
		}
		for range 50 {
			if err := stream.Send(&testpb.StreamingInputCallRequest{Payload: payload(10_000)}); err != nil {
				return err
			}
		}
		response, err := stream.CloseAndRecv()
		if err == nil && response.GetAggregatedPayloadSize() != 500_000 {
			err = fmt.Errorf("the sum is %d", response.GetAggregatedPayloadSize())
		}
		return err
	},
	"both streaming": func(ctx context.Context, client testpb.TestServiceClient) error {
		stream, err := client.FullDuplexCall(ctx)
		if err != nil {
			return err
		}
		// Each message waits for the response to the one before.
		for i := range 50 {
			if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: payload(int32(i))}); err != nil {
				return err
			}
			if got, err := stream.Recv(); err != nil || len(got.GetPayload().GetBody()) != i {
				return fmt.Errorf("message %d: %v, %w", i, got, err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("the end is %w", err)
		}
		return nil
	},
}

func TestGRPCOfAllKindsAtZero(t *testing.T) {
	for name, call := range grpcCalls {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			client := f.grpc()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			failed := make(chan error, 1)
			go func() { failed <- call(ctx, client) }()
			f.held(1)
			f.pods(grpcPod(t))
			if err := <-failed; err != nil {
				t.Error(err)
			}
			// And once more, awake.
			if err := call(ctx, client); err != nil {
				t.Error(err)
			}
			f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
		})
	}
}

// TestUserAgentsThatDoNotWake sends local replies to the configured ones while the target
// sleeps, and forwards theirs as any other once it is awake.
func TestUserAgentsThatDoNotWake(t *testing.T) {
	f := newFixture(t, nil)
	client := f.client()
	query := func(agent string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.address+"/", nil)
		if err != nil {
			t.Error(err)
			return &http.Response{}
		}
		request.Header.Set("User-Agent", agent)
		response, err := client.Do(request)
		if err != nil {
			t.Error(err)
			return &http.Response{}
		}
		response.Body.Close()
		return response
	}
	passive := []string{"kube-probe/1.37", "Monitor 2 (https://example.com)"}
	for _, agent := range passive {
		response := query(agent)
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get(localreply.HeaderReason) != string(localreply.ReasonAsleep) {
			t.Errorf("%q gets %d %v", agent, response.StatusCode, response.Header)
		}
	}
	if f.service.Queue().Wanting() {
		t.Error("a health check wakes the target")
	}

	held := make(chan *http.Response, 1)
	go func() { held <- query("Mozilla/5.0 (Monitor 2)") }()
	f.held(1)
	if !f.service.Queue().Wanting() {
		t.Error("another user agent does not wake the target")
	}
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	if response := <-held; response.StatusCode != http.StatusNoContent {
		t.Errorf("the held request gets %d", response.StatusCode)
	}
	for _, agent := range passive {
		if response := query(agent); response.StatusCode != http.StatusNoContent {
			t.Errorf("%q gets %d though the target is awake", agent, response.StatusCode)
		}
	}
}

func TestCancelledStreamFreesItsPlace(t *testing.T) {
	f := newFixture(t, nil)
	client := f.grpc()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		failed <- err
	}()
	f.held(1)
	cancel()
	if err := <-failed; status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	f.held(0)
}

func TestLimitsNameThemselves(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxPending = 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := f.grpc()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
			t.Errorf("the held call: %v", err)
		}
	})
	f.held(1)
	_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
	if got := status.Convert(err); got.Code() != codes.ResourceExhausted || !strings.Contains(got.Message(), "maxPending") {
		t.Errorf("gRPC got %v", err)
	}
	response, err := f.client().Get("http://" + f.address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" ||
		response.Header.Get(localreply.HeaderReason) != string(localreply.ReasonTooManyPending) || !bytes.Contains(body, []byte("maxPending")) {
		t.Errorf("HTTP got %d %v %s", response.StatusCode, response.Header, body)
	}
	f.pods(grpcPod(t))
	waiting.Wait()
}

func TestRequestsArriveAsTheyWereSent(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Trailer", "X-Declared")
		w.Header().Set("X-Seen", fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Host, " ", r.Header["X-A"], " ", r.UserAgent(), " ", r.Trailer.Get("X-T")))
		fmt.Fprintf(w, "%d", len(body))
		w.Header().Set("X-Declared", "1")
		w.Header().Set(http.TrailerPrefix+"X-Undeclared", "2")
	}))
	const size = 4 << 20
	for _, path := range []string{"/", "/a%2Fb/../c?x=%20&y", "//double//slash?z", "/?"} {
		request, err := http.NewRequest(http.MethodPut, "http://"+f.address+path, io.MultiReader(bytes.NewReader(make([]byte, size))))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "cart.example"
		request.Header["X-A"] = []string{"1", "2"}
		request.Header["User-Agent"] = []string{""}
		request.Trailer = http.Header{"X-T": {"t"}}
		response, err := f.client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != fmt.Sprint(size) {
			t.Fatalf("got %q, %v", body, err)
		}
		if got, want := response.Header.Get("X-Seen"), fmt.Sprint("PUT ", path, " cart.example [1 2]  t"); got != want {
			t.Errorf("the pod saw %q, want %q", got, want)
		}
		if response.Trailer.Get("X-Declared") != "1" || response.Trailer.Get("X-Undeclared") != "2" {
			t.Errorf("the trailers are %v", response.Trailer)
		}
	}
}

// Clients of a service that no longer needs a resolver are told to reconnect,
// and lose nothing.
func TestServeModeMakesClientsReconnect(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Mode = v1alpha1.ModeServe })
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	client := f.client()
	for range 5 {
		response, err := client.Get("http://" + f.address)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "ok" {
			t.Fatalf("got %q, %v", body, err)
		}
		response.Body.Close()
	}
	f.eventually(func() bool { return f.conns.Load() > 1 })
}

func TestDrainFinishesOpenStreams(t *testing.T) {
	f := newFixture(t, nil)
	client := f.client()
	responded := make(chan error, 1)
	go func() {
		response, err := client.Get("http://" + f.address)
		if err == nil {
			_, err = io.ReadAll(response.Body)
			response.Body.Close()
		}
		responded <- err
	}()
	f.held(1)
	f.server.Drain()
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	if err := <-responded; err != nil {
		t.Fatal(err)
	}
}

func TestPodThatBreaksInTheMiddle(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	client := f.client()
	var reset http2.StreamError
	if _, err := client.Get("http://" + f.address + "/early"); !errors.As(err, &reset) || reset.Code != http2.ErrCodeInternal {
		t.Errorf("a stream that the pod resets ends with %v", err)
	}
	response, err := client.Get("http://" + f.address + "/late")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("read %q as if it were complete", body)
	}
}
