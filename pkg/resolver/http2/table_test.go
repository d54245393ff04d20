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
	"fmt"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// TestTheTableUpdateFollowsTheAcknowledgement checks that the first header block after the
// ACK of a smaller table begins with the update, also a block that was encoded before the
// ACK came.
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

// TestTheTableOfThePodHasTheSizeThatBothKnow checks that the table has the size that the
// pod announced, up to the initial one, from the ACK on.
func TestTheTableOfThePodHasTheSizeThatBothKnow(t *testing.T) {
	for size, want := range map[uint32]uint32{0: 0, 100: 100, initialTableSize: initialTableSize, 1 << 30: initialTableSize} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f := newFixture(t, nil)
			blocks := make(chan []byte)
			f.pods(rawPod(t, func(w *wire) {
				if !w.greet(http2.Setting{ID: http2.SettingHeaderTableSize, Val: size}) {
					return
				}
				w.events(func(frame http2.Frame) {
					if h, ok := frame.(*http2.HeadersFrame); ok {
						blocks <- slices.Clone(h.HeaderBlockFragment())
					}
				})
			}))
			// The first field alone is longer than any table.
			fields := append([]string{":path", "/" + long(2*initialTableSize)}, ":method", "GET", ":scheme", "http", ":authority", "cart", "a", "b")
			w := dialWire(t, f.address)
			w.headers(1, true, fields...)
			if first := <-blocks; first[0]&0xe0 == 0x20 {
				t.Error("the size of the table changes before the pod knows that")
			}
			// The resolver's own SETTINGS, its ACK and the pod's.
			for range 3 {
				if settings := await[*http2.SettingsFrame](w); !settings.IsAck() {
					w.do(w.WriteSettingsAck())
				}
			}
			w.headers(3, true, fields...)
			block := <-blocks
			if got, _, ok := cutInteger(block, 5); block[0]&0xe0 != 0x20 || !ok || uint32(got) != want {
				t.Errorf("the next header block begins with %x, which is size %d", block[:4], got)
			}
			w.headers(5, true, fields...)
			if third := <-blocks; third[0]&0xe0 == 0x20 {
				t.Errorf("the one after it begins with %x", third[:4])
			}
		})
	}
}
