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
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// heldOverhead is about what a held stream keeps: its goroutine, its request
// and its header fields.
const heldOverhead = 8 << 10

// errNothingSent means that no byte of a request left: it can wait again.
var errNothingSent = errors.New("nothing was sent")

// handler handles the streams of one connection.
type handler struct {
	server *Server
	find   destination.Find
}

// ServeHTTP finds out what a request is for, and has it forwarded.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	svc, port, instead := h.find(func(name string) []string {
		if strings.EqualFold(name, "host") {
			return []string{r.Host}
		}
		return r.Header.Values(name)
	})
	if svc == nil {
		instead.ServeHTTP(w, r)
		return
	}
	record := &accesslog.Record{
		Namespace:   svc.Namespace,
		Service:     svc.PublicService,
		Port:        port.Number,
		Protocol:    accesslog.HTTP2,
		Method:      r.Method,
		Path:        r.URL.Path,
		TraceParent: r.Header.Get("Traceparent"),
		Client:      r.RemoteAddr,
		Received:    time.Now(),
		Outcome:     accesslog.Forwarded,
	}
	defer func() {
		record.Ended = time.Now()
		svc.Finish(record)
	}()
	f := &forwarding{server: h.server, service: svc, port: port}
	f.forward(w, r, record)
}

// forwarding is one request on its way.
type forwarding struct {
	server  *Server
	service *service.Service
	port    service.Port
}

// forward forwards a request, holding it for as long as no pod can take it.
func (f *forwarding) forward(w http.ResponseWriter, r *http.Request, record *accesslog.Record) {
	if r.Method == http.MethodConnect {
		refuse(w, r, record, localreply.New(http.StatusNotImplemented, localreply.ReasonBadRequest,
			"CONNECT is not possible here: the destination is the service alone"))
		return
	}
	lease, ok := f.service.Queue().TryTake(f.port.Name)
	if !ok {
		if local := f.answerAsleep(r); local != nil {
			refuse(w, r, record, local)
			return
		}
	}
	if traffic := f.service.Traffic(); !traffic.Wanted() || !f.server.options.Fallback.Passive(f.service, probeRequest(r)) {
		traffic.Begin()
		defer traffic.End()
	}
	again := false
	for {
		if !ok {
			var err error
			if lease, err = f.hold(r, record, again); err != nil {
				f.refuseHeld(w, r, record, err)
				return
			}
		}
		record.Released = time.Now()
		record.Pod = lease.Pod.Name
		err := f.exchange(w, r, lease, record)
		if !errors.Is(err, errNothingSent) {
			return
		}
		ok, again = false, true
	}
}

// answerAsleep returns the resolver's own answer to a request that it does not
// hold while no pod can take it, or nil.
func (f *forwarding) answerAsleep(r *http.Request) *localreply.Reply {
	if f.service.Queue().Answering(f.port.Name) {
		return nil
	}
	return f.server.options.Fallback.Reply(f.service, probeRequest(r))
}

func probeRequest(r *http.Request) *proberesponse.Request {
	return &proberesponse.Request{
		Method: r.Method,
		Path:   r.URL.EscapedPath(),
		Query:  r.URL.RawQuery,
		Values: r.Header.Values,
	}
}

// hold waits until a pod can take the request, or its client gives up.
func (f *forwarding) hold(r *http.Request, record *accesslog.Record, again bool) (hold.Lease, error) {
	record.Held = true
	deadline := record.Received.Add(f.service.Config().HoldTimeout)
	ctx, cancel := context.WithDeadlineCause(r.Context(), deadline, hold.ErrTimeout)
	defer cancel()
	wait := f.service.Queue().Wait
	if again {
		wait = f.service.Queue().WaitAgain
	}
	lease, cold, err := wait(ctx, &hold.Waiter{Port: f.port.Name, Bytes: heldOverhead})
	record.WakeAnswered, record.EndpointReady = cold.WakeAnswered, cold.EndpointReady
	if r.Context().Err() != nil {
		if err == nil {
			lease.Release()
		}
		return hold.Lease{}, hold.ErrClientGone
	}
	return lease, err
}

func (f *forwarding) refuseHeld(w http.ResponseWriter, r *http.Request, record *accesslog.Record, err error) {
	if errors.Is(err, hold.ErrClientGone) {
		record.Outcome = accesslog.ClientGone
		return
	}
	refuse(w, r, record, localreply.ForError(f.service, err))
}

func refuse(w http.ResponseWriter, r *http.Request, record *accesslog.Record, a *localreply.Reply) {
	record.Outcome = accesslog.Answered
	record.Status = a.Status
	record.Reason = string(a.Reason)
	record.Answered = time.Now()
	a.ServeHTTP(w, r)
}

// exchange sends a request to the pod of a lease and its answer to the client.
// It returns errNothingSent when the request can be sent elsewhere.
func (f *forwarding) exchange(w http.ResponseWriter, r *http.Request, lease hold.Lease, record *accesslog.Record) error {
	conn, err := f.server.options.Pool.reserve(r.Context(), lease)
	if err != nil {
		if r.Context().Err() != nil {
			lease.Release()
			record.Outcome = accesslog.ClientGone
			return nil
		}
		if localfault.Of(err) != nil {
			lease.Release()
			refuse(w, r, record, localreply.ForError(f.service, err))
			return nil
		}
		lease.Refuse()
		return errNothingSent
	}
	nothingSent := false
	defer func() {
		if nothingSent {
			// It comes back once the pod is seen to accept connections.
			lease.Refuse()
			return
		}
		lease.Release()
	}()
	body := &observedBody{ReadCloser: r.Body}
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{
		WroteHeaders: func() { sent.Store(true) },
		Got1xxResponse: func(status int, fields textproto.MIMEHeader) error {
			interim(w, status, http.Header(fields))
			return nil
		},
	}
	response, err := conn.RoundTrip(outgoing(r, body, trace))
	if err != nil {
		switch {
		case r.Context().Err() != nil:
			record.Outcome = accesslog.ClientGone
			return nil
		case !body.touched.Load() && (!sent.Load() || isRefused(err)):
			nothingSent = true
			return errNothingSent
		}
		refuse(w, r, record, localreply.New(http.StatusBadGateway, localreply.ReasonPodLost,
			"the connection to the pod broke before it answered; the request may have been received, so it was not sent again"))
		record.Reason = err.Error()
		return nil
	}
	defer response.Body.Close()
	record.Status = response.StatusCode
	record.Answered = time.Now()
	if f.server.draining.Load() || f.service.LeftFor() >= f.server.options.MoveDelay {
		// The server takes this as a reason to tell the client to go away once
		// its open streams have ended.
		w.Header().Set("Connection", "close")
	}
	sentBytes, err := pass(w, response)
	record.BytesIn, record.BytesOut = body.read.Load(), sentBytes
	if err != nil {
		record.Outcome, record.Reason = accesslog.Failed, err.Error()
		if r.Context().Err() != nil {
			record.Outcome = accesslog.ClientGone
		}
		// The client has part of an answer: resetting the stream tells it that
		// the rest is missing. The deferred functions run all the same.
		panic(http.ErrAbortHandler)
	}
	return nil
}

// isRefused reports whether a pod refused a stream before it looked at it, as
// the protocol lets it say.
func isRefused(err error) bool {
	var stream http2.StreamError
	return errors.As(err, &stream) && stream.Code == http2.ErrCodeRefusedStream
}

// outgoing returns the request that is sent for a received one.
func outgoing(r *http.Request, body *observedBody, trace *httptrace.ClientTrace) *http.Request {
	out := &http.Request{
		Method:        r.Method,
		URL:           target(r),
		Host:          r.Host,
		Header:        r.Header,
		Trailer:       r.Trailer,
		ContentLength: r.ContentLength,
		Body:          body,
	}
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	if _, ok := r.Header["User-Agent"]; !ok {
		// Absent stays absent.
		r.Header["User-Agent"] = []string{""}
	}
	return out.WithContext(httptrace.WithClientTrace(r.Context(), trace))
}

// target returns a URL whose path and query are sent as they were received.
func target(r *http.Request) *url.URL {
	if strings.HasPrefix(r.RequestURI, "//") {
		// As an opaque URL it would begin with a host.
		return &url.URL{Scheme: "http", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery}
	}
	return &url.URL{Scheme: "http", Host: r.Host, Opaque: r.RequestURI}
}

// interim passes on a response that announces another.
func interim(w http.ResponseWriter, status int, fields http.Header) {
	if status == http.StatusContinue {
		// The server says it by itself when the body is asked for.
		return
	}
	maps.Copy(w.Header(), fields)
	w.WriteHeader(status)
	for name := range fields {
		w.Header().Del(name)
	}
}

// copyBuffers are used between a pod and a client.
var copyBuffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// pass passes a response on: its header fields at once, its body as it comes,
// its trailers last.
func pass(w http.ResponseWriter, response *http.Response) (sent int64, err error) {
	fields := w.Header()
	maps.Copy(fields, response.Header)
	for name := range response.Trailer {
		fields.Add("Trailer", name)
	}
	announced := len(response.Trailer)
	w.WriteHeader(response.StatusCode)
	if response.ContentLength != 0 {
		// A response without a body ends with its header fields, and must stay
		// so: gRPC has its status in them then.
		if err := flush(w); err != nil {
			return 0, err
		}
		if sent, err = copyBody(w, response.Body); err != nil {
			return sent, err
		}
	}
	for name, values := range response.Trailer {
		if announced != len(response.Trailer) {
			name = http.TrailerPrefix + name
		}
		fields[name] = values
	}
	return sent, nil
}

// copyBody passes on what there is as soon as it is there, and returns how much
// that was.
func copyBody(w http.ResponseWriter, body io.Reader) (sent int64, err error) {
	buffer := copyBuffers.Get().(*[16 << 10]byte)
	defer copyBuffers.Put(buffer)
	for {
		n, err := body.Read(buffer[:])
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return sent, err
			}
			if err := flush(w); err != nil {
				return sent, err
			}
			sent += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
}

func flush(w http.ResponseWriter) error {
	return http.NewResponseController(w).Flush()
}

// observedBody is a request body that tells whether any of it was asked for, and
// how much was read.
type observedBody struct {
	io.ReadCloser
	touched atomic.Bool
	read    atomic.Int64
}

// Read implements io.Reader.
func (b *observedBody) Read(p []byte) (int, error) {
	b.touched.Store(true)
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}

// Close does not close the body: when nothing was sent, the request may be sent
// elsewhere with it, and the server closes it in the end.
func (b *observedBody) Close() error { return nil }
