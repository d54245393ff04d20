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
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync"

	"github.com/gorilla/websocket"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c" //nolint:staticcheck // net/http has no upgrade to HTTP/2, which clients still request
)

// newWebHandler serves, in HTTP/1.1 and in HTTP/2 with prior knowledge and after
// an upgrade, besides what rest serves:
//
//	/echo            sends the request body back as it comes, and its trailers
//	/interim         sends a 103 before its response
//	/reject          responds with 413 and reads nothing of the body
//	/websocket       sends messages of a WebSocket back
//	/events          three server-sent events; the second and the third each wait
//	/events/advance  for a POST with the same "stream" in the query
func newWebHandler(rest http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", echoBody)
	mux.HandleFunc("/interim", func(response http.ResponseWriter, _ *http.Request) {
		response.Header().Set("Link", "</style.css>; rel=preload")
		response.WriteHeader(http.StatusEarlyHints)
		response.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(response, "announced")
	})
	mux.HandleFunc("/reject", func(response http.ResponseWriter, _ *http.Request) {
		response.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	mux.HandleFunc("/websocket", echoMessages)
	streams := &eventStreams{advance: map[string]chan struct{}{}}
	mux.HandleFunc("/events", streams.serve)
	mux.HandleFunc("POST /events/advance", streams.next)
	mux.Handle("/", rest)
	return h2c.NewHandler(mux, &http2.Server{}) //nolint:staticcheck // as above
}

func echoBody(response http.ResponseWriter, request *http.Request) {
	control := http.NewResponseController(response)
	if request.ProtoMajor == 1 {
		if err := control.EnableFullDuplex(); err != nil {
			http.Error(response, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	response.Header().Set("Application-Protocol", request.Proto)
	for name := range request.Trailer {
		response.Header().Add("Trailer", name)
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := request.Body.Read(buffer)
		if _, err := response.Write(buffer[:n]); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	maps.Copy(response.Header(), request.Trailer)
}

func echoMessages(response http.ResponseWriter, request *http.Request) {
	var upgrader websocket.Upgrader
	conn, err := upgrader.Upgrade(response, request, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil {
			return
		}
		if err := conn.WriteMessage(kind, message); err != nil {
			return
		}
	}
}

// eventStreams has the streams of server-sent events that wait for /events/advance.
type eventStreams struct {
	mu      sync.Mutex
	advance map[string]chan struct{}
}

func (s *eventStreams) of(request *http.Request) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := request.URL.Query().Get("stream")
	if s.advance[name] == nil {
		s.advance[name] = make(chan struct{})
	}
	return s.advance[name]
}

func (s *eventStreams) serve(response http.ResponseWriter, request *http.Request) {
	advance := s.of(request)
	response.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(response)
	for i := 1; i <= 3; i++ {
		if i > 1 {
			select {
			case <-advance:
			case <-request.Context().Done():
				return
			}
		}
		if _, err := io.WriteString(response, "data: "+strconv.Itoa(i)+"\n\n"); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
	}
}

func (s *eventStreams) next(_ http.ResponseWriter, request *http.Request) {
	select {
	case s.of(request) <- struct{}{}:
	case <-request.Context().Done():
	}
}
