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
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// testService is a gRPC service with each kind of call.
type testService struct {
	testpb.UnimplementedTestServiceServer
}

func payload(size int32) *testpb.Payload { return &testpb.Payload{Body: make([]byte, size)} }

func (testService) UnaryCall(ctx context.Context, request *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if requested := request.GetResponseStatus(); requested != nil {
		return nil, status.Error(codes.Code(requested.GetCode()), requested.GetMessage())
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

func TestCanceledStreamFreesItsPlace(t *testing.T) {
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
