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

// Package tracing makes OpenTelemetry spans of what is known of a request when
// it has ended. They are made afterwards, from the times in its record, so that
// a request that nobody traces costs nothing, and join the trace that the
// request's traceparent names; the request itself is forwarded as it was.
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

// The names of the spans. Those of the steps of a cold start are only there
// when the request saw the step.
const (
	// spanRequest is all of a request or connection.
	spanRequest = "elasti.request"
	// spanHold is from its arrival until it was given a pod.
	spanHold = "elasti.hold"
	// spanWake is, of that, the time until the wake was answered.
	spanWake = "elasti.wake"
	// spanProbe is, of that, the time after that until a pod could answer.
	spanProbe = "elasti.probe"
	// spanForward is from when it was given a pod until its end.
	spanForward = "elasti.forward"
)

// Recorder makes spans. It is safe for concurrent use.
type Recorder struct {
	tracer     trace.Tracer
	propagator propagation.TraceContext
}

// New returns a Recorder that makes its spans with a provider, and none when
// that is nil.
func New(provider trace.TracerProvider) *Recorder {
	if provider == nil {
		return &Recorder{}
	}
	return &Recorder{tracer: provider.Tracer("github.com/truefoundry/elasti-apiserver/pkg/resolver")}
}

// Record makes the spans of a request or connection that has ended.
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
		r.step(held, spanWake, record.Received, record.WakeAnswered)
		r.step(held, spanProbe, latest(record.Received, record.WakeAnswered), record.EndpointReady)
		hold.End(trace.WithTimestamp(released))
	}
	r.step(ctx, spanForward, record.Released, record.Ended, attribute.String("k8s.pod.name", record.Pod))
	request.End(trace.WithTimestamp(record.Ended))
}

func (r *Recorder) start(ctx context.Context, name string, begin time.Time, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return r.tracer.Start(ctx, name, append(options, trace.WithTimestamp(begin))...)
}

// step makes the span of a step, unless the request did not see it.
func (r *Recorder) step(ctx context.Context, name string, begin, end time.Time, attributes ...attribute.KeyValue) {
	if begin.IsZero() || !end.After(begin) {
		return
	}
	_, span := r.start(ctx, name, begin, trace.WithAttributes(attributes...))
	span.End(trace.WithTimestamp(end))
}

// text returns what a client or a pod said as text: attributes that are not UTF-8 can
// not be sent, nor what would be sent with them.
func text(said string) string { return strings.ToValidUTF8(said, "\uFFFD") }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
