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
	"encoding/json"
	"strconv"
	"time"
)

// appendJSON appends the record as encoding/json would write it, but that it
// leaves <, > and & as they are. A line for each request must cost far less
// than the request, and encoding/json does not.
func (r *Record) appendJSON(line []byte) []byte {
	line = appendString(append(line, `{"namespace":`...), r.Namespace)
	line = appendString(append(line, `,"service":`...), r.Service)
	line = strconv.AppendInt(append(line, `,"port":`...), int64(r.Port), 10)
	line = appendString(append(line, `,"protocol":`...), string(r.Protocol))
	line = appendUnlessEmpty(line, `,"method":`, r.Method)
	line = appendUnlessEmpty(line, `,"path":`, r.Path)
	if r.Status != 0 {
		line = strconv.AppendInt(append(line, `,"status":`...), int64(r.Status), 10)
	}
	line = appendString(append(line, `,"outcome":`...), string(r.Outcome))
	line = appendUnlessEmpty(line, `,"reason":`, r.Reason)
	line = appendUnlessEmpty(line, `,"pod":`, r.Pod)
	line = appendUnlessEmpty(line, `,"traceParent":`, r.TraceParent)
	line = appendUnlessEmpty(line, `,"client":`, r.Client)
	line = appendUnlessZero(line, `,"received":"`, r.Received)
	line = appendUnlessZero(line, `,"wakeAnswered":"`, r.WakeAnswered)
	line = appendUnlessZero(line, `,"endpointReady":"`, r.EndpointReady)
	line = appendUnlessZero(line, `,"released":"`, r.Released)
	line = appendUnlessZero(line, `,"answered":"`, r.Answered)
	line = appendUnlessZero(line, `,"ended":"`, r.Ended)
	line = strconv.AppendInt(append(line, `,"bytesIn":`...), r.BytesIn, 10)
	line = strconv.AppendInt(append(line, `,"bytesOut":`...), r.BytesOut, 10)
	line = strconv.AppendBool(append(line, `,"held":`...), r.Held)
	return append(line, '}')
}

func appendUnlessEmpty(line []byte, name, value string) []byte {
	if value == "" {
		return line
	}
	return appendString(append(line, name...), value)
}

// appendUnlessZero appends a time in RFC 3339. The name has the opening quote.
func appendUnlessZero(line []byte, name string, at time.Time) []byte {
	if at.IsZero() {
		return line
	}
	return append(at.AppendFormat(append(line, name...), time.RFC3339Nano), '"')
}

func appendString(line []byte, value string) []byte {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			// What a client made up. A string can always be encoded.
			encoded, _ := json.Marshal(value)
			return append(line, encoded...)
		}
	}
	line = append(line, '"')
	line = append(line, value...)
	return append(line, '"')
}
