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

// Package tracing creates the OpenTelemetry spans of requests. It creates them after
// the end of a request, from the times in its record, so that a request that is not
// sampled costs nothing. The spans join the trace of the request's traceparent, which
// is forwarded unchanged.
//
// It knows no protocol: a request is its record to it. Begin with Recorder.
package tracing

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
)

// The names of the spans. A span of a step of a cold start exists only for requests that were
// held during the step.
const (
	// spanRequest is a whole request or connection.
	spanRequest = "elasti.request"
	// spanHold is the time from its arrival until it got a pod.
	spanHold = "elasti.hold"
	// spanWake is the part of spanHold until the wake call returned.
	spanWake = "elasti.wake"
	// spanProbe is the part of spanHold after that until a pod was ready.
	spanProbe = "elasti.probe"
	// spanForward is the time from when it got a pod until its end.
	spanForward = "elasti.forward"
)

// Recorder creates spans. It is safe for concurrent use.
type Recorder struct {
	tracer     trace.Tracer
	propagator propagation.TraceContext
}

// New returns a Recorder that creates its spans with a provider. With a nil provider
// it creates none.
func New(provider trace.TracerProvider) *Recorder {
	if provider == nil {
		return &Recorder{}
	}
	return &Recorder{tracer: provider.Tracer("github.com/truefoundry/elasti-apiserver/pkg/resolver")}
}

// Record creates the spans of a request or connection that has ended.
func (r *Recorder) Record(record *accesslog.Record) {
	if r.tracer == nil {
		return
	}
	method, path, reason := text(record.Method), text(record.Path), text(record.Reason)
	parent := r.propagator.Extract(context.Background(), propagation.MapCarrier{"traceparent": record.TraceParent})
	ctx, request := r.start(parent, spanRequest, record.Received,
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(
			attribute.String("elasti.protocol", string(record.Protocol)),
			attribute.String("elasti.outcome", string(record.Outcome)),
			attribute.Bool("elasti.held", record.Held),
			attribute.String("k8s.namespace.name", record.Namespace),
			attribute.String("k8s.service.name", record.Service),
			attribute.String("http.request.method", method),
			attribute.String("url.path", path),
			attribute.Int("http.response.status_code", record.Status),
		))
	if !request.IsRecording() {
		return
	}
	if record.Outcome == accesslog.Failed || record.Reason != "" {
		request.SetStatus(codes.Error, reason)
	}
	if record.Held {
		released := record.Released
		if released.IsZero() {
			released = record.Ended
		}
		held, hold := r.start(ctx, spanHold, record.Received)
		r.step(held, spanWake, record.Received, record.WakeSucceeded)
		r.step(held, spanProbe, latest(record.Received, record.WakeSucceeded), record.EndpointReady)
		hold.End(trace.WithTimestamp(released))
	}
	r.step(ctx, spanForward, record.Released, record.Ended, attribute.String("k8s.pod.name", record.Pod))
	request.End(trace.WithTimestamp(record.Ended))
}

func (r *Recorder) start(ctx context.Context, name string, begin time.Time, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return r.tracer.Start(ctx, name, append(options, trace.WithTimestamp(begin))...)
}

// step creates the span of a step, unless the record does not have its times.
func (r *Recorder) step(ctx context.Context, name string, begin, end time.Time, attributes ...attribute.KeyValue) {
	if begin.IsZero() || !end.After(begin) {
		return
	}
	_, span := r.start(ctx, name, begin, trace.WithAttributes(attributes...))
	span.End(trace.WithTimestamp(end))
}

// text returns a text of a client or pod as valid UTF-8. With an attribute that is
// not valid UTF-8 the whole batch of spans could not be sent.
func text(received string) string { return strings.ToValidUTF8(received, "\uFFFD") }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
