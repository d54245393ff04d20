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
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// TestTheTableUpdateFollowsTheAcknowledgement: the first header block behind the ACK
// of a smaller table begins with it, also one that was made before the ACK came.
func TestTheTableUpdateFollowsTheAcknowledgement(t *testing.T) {
	f := newFixture(t, nil)
	got, release, acknowledged := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.cart(func(host string) {
		if host == "late" {
			close(release)
			<-acknowledged
		}
	})
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		settings := 0
		w.events(func(frame http2.Frame) {
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if frame.IsAck() {
					return
				}
				if settings++; settings > 1 {
					close(got)
					<-release
				}
				_ = w.WriteSettingsAck()
			case *http2.HeadersFrame:
				_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: w.encode(":status", "200"), EndHeaders: true, EndStream: true})
			}
		})
	}))
	w := dialWire(t, f.address)
	w.headers(1, true, of("cart")...)
	await[*http2.HeadersFrame](w)
	w.do(w.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
	<-got
	client := w.Conn
	said := &onePiece{Conn: client}
	w.Framer = http2.NewFramer(said, client)
	w.headers(3, true, of("other")...)
	w.headers(5, true, of("late")...)
	if _, err := client.Write(said.all); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) < 3 {
		frame, err := w.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if frame.IsAck() {
				seen = append(seen, "ACK")
				close(acknowledged)
			}
		case *http2.HeadersFrame:
			word := "headers"
			if frame.HeaderBlockFragment()[0] == 0x20 {
				word = "update, headers"
			}
			seen = append(seen, word)
			if status := w.decode(frame)[":status"]; status != "421" {
				t.Errorf("got status %s", status)
			}
		}
	}
	if want := []string{"ACK", "update, headers", "headers"}; !slices.Equal(seen, want) {
		t.Errorf("the client has seen %q", seen)
	}
}
