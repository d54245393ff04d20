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
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func http2Conversations() []conversation {
	return []conversation{
		{"HTTP2Trailers", func(ctx context.Context, h *host) error {
			return echoWithTrailers(ctx, h, priorKnowledge(), "HTTP/2.0")
		}},
		{"HTTP2BigBodiesBothWays", func(ctx context.Context, h *host) error { return bigBodies(ctx, h, priorKnowledge()) }},
		{"HTTP2ServerSentEvents", func(ctx context.Context, h *host) error {
			return serverSentEvents(ctx, h, priorKnowledge(), "http2")
		}},
		{"HTTP2CurlPriorKnowledge", func(ctx context.Context, h *host) error {
			return curl(ctx, h, "2", "--http2-prior-knowledge")
		}},
		{"HTTP2CurlUpgrade", curlUpgrade},
		{"HTTP2CurlUpgradeNotOffered", curlUpgradeNotOffered},
		{"HTTP2Nghttp", nghttp},
		{"HTTP2H2load", h2load},
		{"GRPCUnary", withGRPC(grpcUnary)},
		{"GRPCStatus", withGRPC(grpcStatus)},
		{"GRPCServerStreaming", withGRPC(grpcServerStreaming)},
		{"GRPCClientStreaming", withGRPC(grpcClientStreaming)},
		{"GRPCBidirectionalStreaming", withGRPC(grpcBidirectionalStreaming)},
		{"GRPCCancellation", withGRPC(grpcCancellation)},
	}
}

// priorKnowledge returns a transport for HTTP/2 without TLS, with prior knowledge.
func priorKnowledge() *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols}
}

// withGRPC has a conversation over a connection of its own.
func withGRPC(have func(context.Context, grpc_testing.TestServiceClient) error) func(context.Context, *host) error {
	return func(ctx context.Context, h *host) error {
		conn, err := grpc.NewClient("passthrough:///"+h.at(portGRPC), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		return errors.Join(have(ctx, grpc_testing.NewTestServiceClient(conn)), conn.Close())
	}
}

func payload(size int) *grpc_testing.Payload { return &grpc_testing.Payload{Body: make([]byte, size)} }

func grpcUnary(ctx context.Context, client grpc_testing.TestServiceClient) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "application-echo", "value")
	var header, trailer metadata.MD
	response, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: payload(1 << 20)}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil {
		return err
	}
	if got := len(response.GetPayload().GetBody()); got != 1<<20 {
		return fmt.Errorf("the response has %d bytes", got)
	}
	if !slices.Equal(header.Get("application-echo"), []string{"value"}) || !slices.Equal(trailer.Get("application-echo-bin"), []string{"value"}) {
		return fmt.Errorf("the header is %v, the trailer %v", header, trailer)
	}
	return nil
}

func grpcStatus(ctx context.Context, client grpc_testing.TestServiceClient) error {
	const message = "as requested: 100 % \t ☺"
	_, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{
		ResponseStatus: &grpc_testing.EchoStatus{Code: int32(codes.FailedPrecondition), Message: message},
	})
	if got := status.Convert(err); got.Code() != codes.FailedPrecondition || got.Message() != message {
		return fmt.Errorf("the call ended with %w", err)
	}
	// This method does not exist.
	if _, err := client.EmptyCall(ctx, &grpc_testing.Empty{}); status.Code(err) != codes.Unimplemented {
		return fmt.Errorf("the call of what is not there ended with %w", err)
	}
	return nil
}

func grpcServerStreaming(ctx context.Context, client grpc_testing.TestServiceClient) error {
	sizes := []int32{1, 100_000, 0, 7}
	request := &grpc_testing.StreamingOutputCallRequest{}
	for _, size := range sizes {
		request.ResponseParameters = append(request.ResponseParameters, &grpc_testing.ResponseParameters{Size: size})
	}
	stream, err := client.StreamingOutputCall(ctx, request)
	if err != nil {
		return err
	}
	for _, size := range sizes {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if got := len(response.GetPayload().GetBody()); got != int(size) {
			return fmt.Errorf("a message has %d bytes, want %d", got, size)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream ended with %w", err)
	}
	return nil
}

func grpcClientStreaming(ctx context.Context, client grpc_testing.TestServiceClient) error {
	stream, err := client.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	for _, size := range []int{27182, 8, 1828, 45904} {
		if err := stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: payload(size)}); err != nil {
			return err
		}
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return err
	}
	if got := response.GetAggregatedPayloadSize(); got != 74922 {
		return fmt.Errorf("the application received %d bytes, want 74922", got)
	}
	return nil
}

// grpcBidirectionalStreaming sends a message only after the response to the previous one.
func grpcBidirectionalStreaming(ctx context.Context, client grpc_testing.TestServiceClient) error {
	stream, err := client.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	for _, size := range []int32{31415, 9, 2653, 58979} {
		err := stream.Send(&grpc_testing.StreamingOutputCallRequest{
			ResponseParameters: []*grpc_testing.ResponseParameters{{Size: size}},
			Payload:            payload(100),
		})
		if err != nil {
			return err
		}
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if got := len(response.GetPayload().GetBody()); got != int(size) {
			return fmt.Errorf("a message has %d bytes, want %d", got, size)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream ended with %w", err)
	}
	return nil
}

// grpcCancellation cancels a stream; other streams of the connection continue.
func grpcCancellation(ctx context.Context, client grpc_testing.TestServiceClient) error {
	canceled, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.FullDuplexCall(canceled)
	if err != nil {
		return err
	}
	err = stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: []*grpc_testing.ResponseParameters{{Size: 1}}})
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		return fmt.Errorf("the canceled stream ended with %w", err)
	}
	_, err = client.UnaryCall(ctx, &grpc_testing.SimpleRequest{})
	return err
}

// nghttp sends a body with nghttp2's client with unusual windows and frames: small windows,
// padding, tables that shrink and grow, and trailers.
func nghttp(ctx context.Context, h *host) error {
	body := strings.Repeat("nghttp ", 10_000)
	output, err := runHTTP2Client(ctx, body, "nghttp", "--window-bits=12", "--connection-window-bits=14", "--padding=100",
		"--header-table-size=0", "--header-table-size=4096", "--trailer=application-trailer: the end", "--data=-", h.url(portWeb, "/echo"))
	if err == nil && output != body {
		err = fmt.Errorf("nghttp printed %d bytes of %d", len(output), len(body))
	}
	return err
}

// h2load sends requests over many streams with nghttp2's load generator.
func h2load(ctx context.Context, h *host) error {
	output, err := runHTTP2Client(ctx, "", "h2load", "--requests=400", "--clients=4", "--max-concurrent-streams=20",
		"--header-table-size=0", "--encoder-header-table-size=0", h.url(portWeb, "/bytes?count=20000"))
	if err == nil && !strings.Contains(output, "400 done, 400 succeeded, 0 failed, 0 errored, 0 timeout") {
		err = fmt.Errorf("h2load printed %s", output)
	}
	return err
}

// runHTTP2Client returns the output of a client of Debian's package nghttp2-client.
func runHTTP2Client(ctx context.Context, input, program string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, program, arguments...)
	command.Stdin = strings.NewReader(input)
	var failure strings.Builder
	command.Stderr = &failure
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, failure.String())
	}
	return string(output), nil
}

// curlUpgrade requests the upgrade to HTTP/2 with a request without a body.
func curlUpgrade(ctx context.Context, h *host) error {
	return runCurl(ctx, "", "hello from ", "\nHTTP/2", "--http2", h.url(portH2C, "/upgraded"))
}

// curlUpgradeNotOffered requests the upgrade on a port that does not offer it.
func curlUpgradeNotOffered(ctx context.Context, h *host) error {
	return runCurl(ctx, "", "hello from ", "\nHTTP/1.1", "--http2", h.url(portWeb, "/not-upgraded"))
}
