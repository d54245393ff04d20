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

package portcheck

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func question(ports ...Port) *Question {
	return &Question{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}, UID: "c0ffee", Ports: ports}
}

// ask asks a server with a handler.
func ask(t *testing.T, handler http.Handler, q *Question) (bool, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	return q.Ask(connection)
}

func TestAsk(t *testing.T) {
	served := []Port{{80, 10000}, {81, 10001}}
	handler := Handler(func(q *Question, port Port) bool {
		return q.Service.String() == "shop/cart" && q.UID == "c0ffee" && slices.Contains(served, port)
	})
	for _, test := range []struct {
		ports []Port
		want  bool
	}{
		{served, true},
		{served[:1], true},
		{nil, true},
		{[]Port{{80, 10000}, {82, 10002}}, false},
		{[]Port{{80, 1000}}, false},
	} {
		if got, err := ask(t, handler, question(test.ports...)); got != test.want || err != nil {
			t.Errorf("all of %v are served: %t, %v", test.ports, got, err)
		}
	}
	many := make([]Port, MaxPorts+1)
	if _, err := ask(t, handler, question(many[:MaxPorts]...)); err != nil {
		t.Errorf("%d ports: %v", MaxPorts, err)
	}
	if _, err := ask(t, handler, question(many...)); err == nil || errors.Is(err, ErrNotSupported) {
		t.Errorf("%d ports: %v", len(many), err)
	}
}

func TestAskResolverOfAnEarlierVersion(t *testing.T) {
	if _, err := ask(t, http.NotFoundHandler(), question(Port{80, 10000})); !errors.Is(err, ErrNotSupported) {
		t.Errorf("got %v", err)
	}
}

// A question that can be parsed is the same once it was written again.
func FuzzParse(f *testing.F) {
	f.Add(question(Port{80, 10000}, Port{443, 65535}).Encode())
	f.Add("service=shop/cart&uid=a&port=80")
	f.Add("service=shop&uid=&port=-1:99999")
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := Parse(values)
		if err != nil {
			return
		}
		again, err := url.ParseQuery(q.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if same, err := Parse(again); err != nil || same.Service != q.Service || same.UID != q.UID || !slices.Equal(same.Ports, q.Ports) {
			t.Errorf("%+v became %+v, %v", q, same, err)
		}
	})
}
