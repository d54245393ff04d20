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
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// Headers with the pod, the peer and the times of a request. They distinguish a
// response of the application from one of another server, and a request that came
// directly from the client from one that a proxy forwarded.
const (
	podHeader       = "Application-Pod"
	peerHeader      = "Application-Peer"
	acceptingHeader = "Application-Accepting-Since"
	receivedHeader  = "Application-Received-At"
	inFlightHeader  = "Application-In-Flight"
)

// The paths of readiness probes and of a metrics server. Their requests are not
// counted.
const (
	healthPath  = "/healthz"
	metricsPath = "/metrics"
)

// newHandler serves:
//
//	/healthz  200, or 503 after PUT /ready?value=false
//	/ready    PUT with value=true or value=false sets the status of /healthz
//	/bytes    responds with the number of bytes in the query's "count"
//	/slow     responds after the duration of the query's "for", such as 500ms
//	/compute  keeps a processor busy for that duration, and responds then
//	/metrics  the number of requests, in the format of Prometheus
//	/         everything else: the host name, and the path of the request
func newHandler(hostname string, accepting time.Time) http.Handler {
	var unready atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc(healthPath, func(response http.ResponseWriter, _ *http.Request) {
		if unready.Load() {
			http.Error(response, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(response, "ok")
	})
	mux.HandleFunc("PUT /ready", func(_ http.ResponseWriter, request *http.Request) {
		unready.Store(request.URL.Query().Get("value") == "false")
	})
	hello := func(response http.ResponseWriter, request *http.Request) {
		fmt.Fprintf(response, "hello from %s, you requested %s\n", hostname, request.URL.Path)
	}
	mux.HandleFunc("/slow", forDuration(func(request *http.Request, duration time.Duration) {
		select {
		case <-time.After(duration):
		case <-request.Context().Done():
		}
	}, hello))
	mux.HandleFunc("/compute", forDuration(func(_ *http.Request, duration time.Duration) {
		for started := time.Now(); time.Since(started) < duration; {
		}
	}, hello))
	var inFlight, requests atomic.Int64
	mux.HandleFunc(metricsPath, func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(response, "# TYPE application_requests_total counter\napplication_requests_total %d\n", requests.Load())
	})
	mux.HandleFunc("/bytes", sendBytes)
	mux.HandleFunc("/", hello)
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		header := response.Header()
		header.Set(podHeader, hostname)
		header.Set(receivedHeader, time.Now().Format(time.RFC3339Nano))
		header.Set(acceptingHeader, accepting.Format(time.RFC3339Nano))
		header.Set(peerHeader, request.RemoteAddr)
		if request.URL.Path != healthPath && request.URL.Path != metricsPath {
			requests.Add(1)
			header.Set(inFlightHeader, strconv.FormatInt(inFlight.Add(1), 10))
			defer inFlight.Add(-1)
		}
		mux.ServeHTTP(response, request)
	})
}

// forDuration calls a function for the duration of the query's "for", and responds if
// the client still waits then.
func forDuration(do func(*http.Request, time.Duration), respond http.HandlerFunc) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		duration, err := time.ParseDuration(request.URL.Query().Get("for"))
		if err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		if do(request, duration); request.Context().Err() == nil {
			respond(response, request)
		}
	}
}

func sendBytes(response http.ResponseWriter, request *http.Request) {
	count, err := strconv.ParseInt(request.URL.Query().Get("count"), 10, 64)
	if err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	response.Header().Set("Content-Length", strconv.FormatInt(count, 10))
	block := make([]byte, 256<<10)
	for count > 0 {
		sent, err := response.Write(block[:min(count, int64(len(block)))])
		if err != nil {
			// The client has closed its connection.
			return
		}
		count -= int64(sent)
	}
}
