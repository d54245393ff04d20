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
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// converse has a client say fromClient and a pod say fromPod, and returns when
// the connection and everything that ran for it has ended. Released says whether
// there is a pod from the beginning.
func converse(t *testing.T, fromClient, fromPod []byte, released bool) {
	t.Helper()
	budget := memory.NewBudget(memory.Limits{Process: 1 << 20})
	svc := service.New(service.Options{Namespace: "shop", Name: "cart", PublicService: "cart", Logger: klog.Background(),
		Config: &service.Config{HoldTimeout: time.Minute, Limits: hold.Limits{MaxPending: 100}}, Budget: budget})
	if released {
		svc.SetPods([]endpoint.Description{{ID: "a", Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: map[string]uint16{"": 80}, Ready: true}})
	}
	var running sync.WaitGroup
	server := New(Options{Fallback: &fallback.Policy{}, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		Dial: func(context.Context, hold.Lease) (net.Conn, error) {
			near, far := net.Pipe()
			running.Go(func() {
				defer far.Close()
				running.Go(func() { _, _ = io.Copy(io.Discard, far) })
				_, _ = far.Write(fromPod)
			})
			return near, nil
		}})
	client, theirs := net.Pipe()
	running.Go(func() {
		server.Serve(context.Background(), theirs, nil, svc.Memory(), destination.Fixed(svc, service.Port{Number: 80}))
	})
	running.Go(func() { _, _ = io.Copy(io.Discard, client) })
	_ = client.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, _ = client.Write(fromClient)
	client.Close()
	running.Wait()
	if held, inFlight, used := svc.Queue().Held(), svc.Queue().InFlight(), svc.Queue().Memory().Used(); held != 0 || inFlight != 0 || used != 0 {
		t.Errorf("%d are held, %d in flight, %d bytes are counted", held, inFlight, used)
	}
	svc.Close()
}

// seeds are the beginnings of conversations.
func seeds() (fromClient, fromPod []byte) {
	fromClient = appendSettings([]byte(http2.ClientPreface), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
	block := []byte{0x82, 0x86, 0x84, 0x41, 0x01, 'a'}
	fromClient = append(appendFrameHeader(fromClient, len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1), block...)
	fromClient = appendData(appendWindowUpdate(appendPing(fromClient, 0, make([]byte, 8)), 1, 10), 1, []byte("body"))
	fromPod = appendSettingsAck(appendSettings(nil, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
	fromPod = append(appendFrameHeader(fromPod, 1, http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1), 0x88)
	fromPod = appendGoAway(appendData(fromPod, 1, []byte("body")), 1, http2.ErrCodeNo, "")
	return fromClient, fromPod
}

// FuzzClient checks that nothing panics, hangs or is left behind, whatever a client sends,
// held or awake.
func FuzzClient(f *testing.F) {
	fromClient, fromPod := seeds()
	f.Add(fromClient, true)
	f.Add(fromClient, false)
	f.Add(append(fromClient, appendReset(appendSettingsAck(nil), 1, http2.ErrCodeCancel)...), true)
	f.Fuzz(func(t *testing.T, data []byte, released bool) {
		converse(t, data, fromPod, released)
		// Most mutations break the preface, which ends everything.
		converse(t, append(fromClient[:len(fromClient):len(fromClient)], data...), fromPod, released)
	})
}

// FuzzPod checks the same of whatever a pod sends.
func FuzzPod(f *testing.F) {
	fromClient, fromPod := seeds()
	f.Add(fromPod)
	f.Add(fromPod[:9])
	f.Fuzz(func(t *testing.T, data []byte) {
		converse(t, fromClient, data, true)
		converse(t, fromClient, append(fromPod[:15:15], data...), true)
	})
}
