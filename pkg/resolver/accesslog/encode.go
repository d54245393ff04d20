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

package accesslog

import (
	"time"

	"go.uber.org/zap/zapcore"
)

// newEncoder returns an encoder of lines with just the fields of a record.
// encoding/json is too expensive for a line for each request.
func newEncoder() zapcore.Encoder {
	return zapcore.NewJSONEncoder(zapcore.EncoderConfig{EncodeTime: zapcore.RFC3339NanoTimeEncoder})
}

// MarshalLogObject implements zapcore.ObjectMarshaler: the fields are those
// that encoding/json would write, in its order.
func (r *Record) MarshalLogObject(line zapcore.ObjectEncoder) error {
	line.AddString("namespace", r.Namespace)
	line.AddString("service", r.Service)
	line.AddInt32("port", r.Port)
	line.AddString("protocol", string(r.Protocol))
	addUnlessEmpty(line, "method", r.Method)
	addUnlessEmpty(line, "path", r.Path)
	if r.Status != 0 {
		line.AddInt("status", r.Status)
	}
	line.AddString("outcome", string(r.Outcome))
	addUnlessEmpty(line, "reason", r.Reason)
	addUnlessEmpty(line, "pod", r.Pod)
	addUnlessEmpty(line, "traceParent", r.TraceParent)
	addUnlessEmpty(line, "client", r.Client)
	addUnlessZero(line, "received", r.Received)
	addUnlessZero(line, "wakeAnswered", r.WakeSucceeded)
	addUnlessZero(line, "endpointReady", r.EndpointReady)
	addUnlessZero(line, "released", r.Released)
	addUnlessZero(line, "answered", r.Responded)
	addUnlessZero(line, "ended", r.Ended)
	line.AddInt64("bytesIn", r.BytesIn)
	line.AddInt64("bytesOut", r.BytesOut)
	line.AddBool("held", r.Held)
	return nil
}

func addUnlessEmpty(line zapcore.ObjectEncoder, name, value string) {
	if value != "" {
		line.AddString(name, value)
	}
}

func addUnlessZero(line zapcore.ObjectEncoder, name string, at time.Time) {
	if !at.IsZero() {
		line.AddTime(name, at)
	}
}
