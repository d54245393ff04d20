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

package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// slowCreate is a request whose body is not sent yet.
type slowCreate struct {
	body      *io.PipeWriter
	object    []byte
	responded chan slowResponse
}

type slowResponse struct {
	code int
	body string
	err  error
}

// startSlowCreate returns when the server has begun to handle a create.
func startSlowCreate(t *testing.T, config *rest.Config, namespace string) *slowCreate {
	t.Helper()
	object := newElastiService("slow")
	object.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("ElastiService"))
	encoded, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	// With HTTP/1.1, a server sends 100 Continue before it reads the body.
	tlsConfig.NextProtos = []string{"http/1.1"}
	transport := &http.Transport{TLSClientConfig: tlsConfig, ExpectContinueTimeout: waitTimeout}
	t.Cleanup(transport.CloseIdleConnections)
	reader, writer := io.Pipe()
	t.Cleanup(func() { _ = writer.Close() })
	wanted := make(chan struct{})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(wanted) }})
	url := config.Host + groupPath + "/v1alpha1/namespaces/" + namespace + "/elastiservices"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, reader)
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = int64(len(encoded))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Expect", "100-continue")
	slow := &slowCreate{body: writer, object: encoded, responded: make(chan slowResponse, 1)}
	go func() {
		response, err := transport.RoundTrip(request)
		if err != nil {
			slow.responded <- slowResponse{err: err}
			return
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		slow.responded <- slowResponse{code: response.StatusCode, body: string(body), err: err}
	}()
	select {
	case <-wanted:
	case response := <-slow.responded:
		t.Fatalf("the request gets %+v before its body was sent", response)
	case <-time.After(waitTimeout):
		t.Fatal("the server does not want to read the body")
	}
	return slow
}

// finish sends the body and returns the status code of the response.
func (s *slowCreate) finish(t *testing.T) int {
	t.Helper()
	if _, err := io.Copy(s.body, bytes.NewReader(s.object)); err != nil {
		t.Errorf("sending the body: %v", err)
	}
	if err := s.body.Close(); err != nil {
		t.Errorf("ending the body: %v", err)
	}
	response := <-s.responded
	if response.err != nil {
		t.Errorf("the request in flight failed: %v", response.err)
	}
	return response.code
}
