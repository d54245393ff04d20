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
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func query(ports ...Port) *Query {
	return &Query{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}, UID: "c0ffee", Ports: ports}
}

// send queries a server with a handler.
func send(t *testing.T, handler http.Handler, q *Query) (State, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	return q.Send(connection)
}

func TestQuery(t *testing.T) {
	accepting := []Port{{80, 10000}, {81, 10001}}
	listening := Port{443, 10443}
	handler := Handler(func(q *Query, port Port) State {
		switch {
		case q.Service.String() != "shop/cart" || q.UID != "c0ffee":
			return Unknown
		case slices.Contains(accepting, port) || q.Accept && port == listening:
			return Accepting
		case port == listening:
			return Listening
		}
		return Unknown
	})
	for _, test := range []struct {
		ports  []Port
		accept bool
		want   State
	}{
		{accepting, false, Accepting},
		{accepting[:1], true, Accepting},
		{nil, false, Accepting},
		{[]Port{{80, 10000}, listening}, false, Listening},
		{[]Port{{80, 10000}, listening}, true, Accepting},
		{[]Port{listening, {82, 10002}}, false, Unknown},
		{[]Port{{80, 1000}}, true, Unknown},
	} {
		q := query(test.ports...)
		q.Accept = test.accept
		if got, err := send(t, handler, q); got != test.want || err != nil {
			t.Errorf("of %v, accept %t: %d, %v, want %d", test.ports, test.accept, got, err, test.want)
		}
	}
	many := make([]Port, MaxPorts+1)
	if _, err := send(t, handler, query(many[:MaxPorts]...)); err != nil {
		t.Errorf("%d ports: %v", MaxPorts, err)
	}
	if _, err := send(t, handler, query(many...)); err == nil || errors.Is(err, ErrNotSupported) {
		t.Errorf("%d ports: %v", len(many), err)
	}
}

// An earlier version knows the ports that it listens on, and how to be queried for these
// or not even that.
func TestQueryOfAResolverOfAnEarlierVersion(t *testing.T) {
	earlier := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "80:10000\n") })
	if got, err := send(t, earlier, query(Port{80, 10000})); got != Accepting || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if got, err := send(t, earlier, query(Port{80, 10000}, Port{81, 10001})); got != Unknown || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := send(t, http.NotFoundHandler(), query(Port{80, 10000})); !errors.Is(err, ErrNotSupported) {
		t.Errorf("got %v", err)
	}
}

// A query that can be parsed is the same once it was written again.
func FuzzParse(f *testing.F) {
	f.Add(query(Port{80, 10000}, Port{443, 65535}).Encode())
	f.Add("service=shop/cart&uid=a&port=80")
	f.Add("service=shop/cart&uid=a&port=80:10000&accept=true")
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
		if same, err := Parse(again); err != nil || same.Service != q.Service || same.UID != q.UID || same.Accept != q.Accept || !slices.Equal(same.Ports, q.Ports) {
			t.Errorf("%+v became %+v, %v", q, same, err)
		}
	})
}
