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

package main

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// grpcService is the test service of gRPC, which has all kinds of calls.
type grpcService struct {
	grpc_testing.UnimplementedTestServiceServer
}

// serveGRPC serves gRPC until ctx ends and open calls have completed.
func serveGRPC(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(server, grpcService{})
	stop := context.AfterFunc(ctx, server.GracefulStop)
	defer stop()
	return server.Serve(listener)
}

// UnaryCall responds with the payload, or with the requested status. It returns the
// metadata field "application-echo" as a header and as a trailer.
func (grpcService) UnaryCall(ctx context.Context, request *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	if values := incoming.Get("application-echo"); len(values) > 0 {
		if err := errors.Join(
			grpc.SetHeader(ctx, metadata.Pairs("application-echo", values[0])),
			grpc.SetTrailer(ctx, metadata.Pairs("application-echo-bin", values[0])),
		); err != nil {
			return nil, err
		}
	}
	if requested := request.GetResponseStatus(); requested.GetCode() != 0 {
		return nil, status.Error(codes.Code(requested.GetCode()), requested.GetMessage())
	}
	return &grpc_testing.SimpleResponse{Payload: request.GetPayload()}, nil
}

// StreamingOutputCall responds with as many messages as there are parameters.
func (grpcService) StreamingOutputCall(request *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	for _, parameters := range request.GetResponseParameters() {
		if err := stream.Send(messageOf(parameters.GetSize())); err != nil {
			return err
		}
	}
	return nil
}

// StreamingInputCall responds with the total size of all messages.
func (grpcService) StreamingInputCall(stream grpc.ClientStreamingServer[grpc_testing.StreamingInputCallRequest, grpc_testing.StreamingInputCallResponse]) error {
	total := 0
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{AggregatedPayloadSize: int32(total)})
		}
		if err != nil {
			return err
		}
		total += len(request.GetPayload().GetBody())
	}
}

// FullDuplexCall responds to each message before it reads the next one.
func (grpcService) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, parameters := range request.GetResponseParameters() {
			if err := stream.Send(messageOf(parameters.GetSize())); err != nil {
				return err
			}
		}
	}
}

func messageOf(size int32) *grpc_testing.StreamingOutputCallResponse {
	return &grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: make([]byte, size)}}
}
