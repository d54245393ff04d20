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
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

var compressed = grpc.UseCompressor(gzip.Name)

// interopTests are those of gRPC that need no credentials.
var interopTests = map[string]func(context.Context, *grpc.ClientConn, testpb.TestServiceClient){
	"empty_unary": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoEmptyUnaryCall(ctx, tc)
	},
	"large_unary": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoLargeUnaryCall(ctx, tc)
	},
	"large_unary, compressed": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoLargeUnaryCall(ctx, tc, compressed)
	},
	"client_streaming": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoClientStreaming(ctx, tc)
	},
	"client_streaming, compressed": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoClientStreaming(ctx, tc, compressed)
	},
	"server_streaming": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoServerStreaming(ctx, tc)
	},
	"server_streaming, compressed": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoServerStreaming(ctx, tc, compressed)
	},
	"ping_pong": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoPingPong(ctx, tc)
	},
	"ping_pong, compressed": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoPingPong(ctx, tc, compressed)
	},
	"empty_stream": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoEmptyStream(ctx, tc)
	},
	"timeout_on_sleeping_server": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoTimeoutOnSleepingServer(ctx, tc)
	},
	"cancel_after_begin": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoCancelAfterBegin(ctx, tc)
	},
	"cancel_after_first_response": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoCancelAfterFirstResponse(ctx, tc)
	},
	"custom_metadata": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoCustomMetadata(ctx, tc)
	},
	"status_code_and_message": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoStatusCodeAndMessage(ctx, tc)
	},
	"special_status_message": func(ctx context.Context, _ *grpc.ClientConn, tc testpb.TestServiceClient) {
		interop.DoSpecialStatusMessage(ctx, tc)
	},
	"unimplemented_service": func(ctx context.Context, cc *grpc.ClientConn, _ testpb.TestServiceClient) {
		interop.DoUnimplementedService(ctx, testpb.NewUnimplementedServiceClient(cc))
	},
	"unimplemented_method": func(ctx context.Context, cc *grpc.ClientConn, _ testpb.TestServiceClient) {
		interop.DoUnimplementedMethod(ctx, cc)
	},
}

// TestInteroperability runs gRPC's own cases, held and awake. A case that fails
// ends the process, as that is how it is written.
func TestInteroperability(t *testing.T) {
	for name, test := range interopTests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), wireTimeout)
			defer cancel()
			f := newFixture(t, nil)
			cc, err := grpc.NewClient("passthrough:///"+f.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cc.Close() })
			done := make(chan struct{})
			go func() {
				defer close(done)
				test(ctx, cc, testpb.NewTestServiceClient(cc))
			}()
			f.eventually(func() bool {
				select {
				case <-done:
					// A case that cancels may be over before it is held.
					return true
				default:
					return f.service.Queue().Held() > 0
				}
			})
			f.pods(interopPod(t))
			<-done
			test(ctx, cc, testpb.NewTestServiceClient(cc))
			f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
		})
	}
}

func interopPod(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	testpb.RegisterTestServiceServer(server, interop.NewTestServer())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return listener.Addr().String()
}
