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

package tracing

import (
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
)

func spansOf(t *testing.T, sampler sdktrace.Sampler, record *accesslog.Record) map[string]sdktrace.ReadOnlySpan {
	t.Helper()
	recorded := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorded), sdktrace.WithSampler(sampler))
	New(provider).Record(record)
	spans := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range recorded.Ended() {
		spans[span.Name()] = span
	}
	return spans
}

func TestSpansOfAColdStart(t *testing.T) {
	at := func(milliseconds int) time.Time { return time.UnixMilli(int64(milliseconds)) }
	record := &accesslog.Record{
		TraceParent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
		Held:        true, Outcome: accesslog.Forwarded, Status: 200,
		Received: at(1), WakeSucceeded: at(5), EndpointReady: at(700), Released: at(701), Responded: at(705), Ended: at(706),
	}
	spans := spansOf(t, sdktrace.ParentBased(sdktrace.NeverSample()), record)
	for name, want := range map[string]string{
		spanRequest: "1-706 ", spanHold: "1-701 " + spanRequest, spanWake: "1-5 " + spanHold,
		spanProbe: "5-700 " + spanHold, spanForward: "701-706 " + spanRequest,
	} {
		span := spans[name]
		if span == nil {
			t.Errorf("there is no span %s", name)
			continue
		}
		parent := ""
		for _, other := range spans {
			if other.SpanContext().SpanID() == span.Parent().SpanID() {
				parent = other.Name()
			}
		}
		if got := fmt.Sprintf("%d-%d %s", span.StartTime().UnixMilli(), span.EndTime().UnixMilli(), parent); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
		if got := span.SpanContext().TraceID().String(); got != "0123456789abcdef0123456789abcdef" {
			t.Errorf("%s is in the trace %s", name, got)
		}
	}
}

// An attribute that is not valid UTF-8 would make a collector reject the whole batch.
func TestAttributesAreText(t *testing.T) {
	now := time.Now()
	spans := spansOf(t, sdktrace.AlwaysSample(), &accesslog.Record{
		Method: "G\xffT", Path: "/caf\xe9", Outcome: accesslog.Failed, Reason: "\xc3", Pod: "web",
		Received: now, Released: now, Ended: now.Add(time.Millisecond),
	})
	for name, span := range spans {
		if !utf8.ValidString(span.Status().Description) {
			t.Errorf("%s has the description %q", name, span.Status().Description)
		}
		for _, attribute := range span.Attributes() {
			if !utf8.ValidString(attribute.Value.AsString()) {
				t.Errorf("%s has %s=%q", name, attribute.Key, attribute.Value.AsString())
			}
		}
	}
}

func TestWhatWasNotHeldHasNoHold(t *testing.T) {
	now := time.Now()
	spans := spansOf(t, sdktrace.AlwaysSample(), &accesslog.Record{Received: now, Released: now, Ended: now.Add(time.Millisecond)})
	if len(spans) != 2 || spans[spanRequest] == nil || spans[spanForward] == nil {
		t.Errorf("the spans are %v", spans)
	}
}

func TestUnsampledTracesHaveNoSpans(t *testing.T) {
	record := &accesslog.Record{TraceParent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00", Received: time.Now(), Ended: time.Now()}
	if spans := spansOf(t, sdktrace.ParentBased(sdktrace.AlwaysSample()), record); len(spans) != 0 {
		t.Errorf("the spans are %v", spans)
	}
}
