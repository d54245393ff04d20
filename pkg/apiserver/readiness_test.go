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

package apiserver

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// authorities are those of an aggregator that can become known.
type authorities struct {
	dynamiccertificates.CAContentProvider
	known bool
}

func (a *authorities) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{}, a.known
}

func TestServerIsReadyWhenItKnowsTheAggregator(t *testing.T) {
	provider := &authorities{}
	check := knowsAggregator(provider)
	request := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	if check.Check(request) == nil {
		t.Error("it is ready without knowing who the aggregator is")
	}
	provider.known = true
	if err := check.Check(request); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
}
