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
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// chance is what a conversation is made from, a byte for each decision.
type chance []byte

// next returns a number below n.
func (c *chance) next(n int) int {
	if len(*c) == 0 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return int(b) % n
}

// improvised is a conversation whose ends say what is allowed, and nothing else.
type improvised struct {
	*conversation
	chance chance
	last   uint32
	// streams are those that both sides may still say something on.
	streams []*improvisedStream
	// window is what the client may still send of bodies.
	window int
	// left is true once the pod takes no more streams, leaving once the client has
	// said that it takes none.
	left, leaving bool
	settings      int
}

type improvisedStream struct {
	id                    uint32
	clientEnded, podEnded bool
	responded             bool
	sent                  int
}

// texts are what names and values are made from.
var texts = []string{"", "a", "x-long-name", "gzip, deflate", "\xff\x80", long(60), long(200), long(3000)}

func (i *improvised) text() string { return texts[i.chance.next(len(texts))] }

// fields returns fields after the given ones.
func (i *improvised) fields(pairs ...string) []string {
	for n := range i.chance.next(4) {
		pairs = append(pairs, fmt.Sprintf("f%d", n*i.chance.next(3)), i.text())
	}
	return pairs
}

func (i *improvised) shape(ends bool) shape {
	s := shape{end: ends, secret: i.chance.next(8) == 0}
	switch i.chance.next(6) {
	case 0:
		s.padding = uint8(i.chance.next(256))
	case 1:
		s.splits = []int{0, 1, 3}
	case 2:
		s.priority = http2.PriorityParam{StreamDep: 7, Weight: uint8(i.chance.next(256))}
	}
	return s
}

// pick returns a stream for which wanted is true, or nil.
func (i *improvised) pick(wanted func(*improvisedStream) bool) *improvisedStream {
	var some []*improvisedStream
	for _, s := range i.streams {
		if wanted(s) {
			some = append(some, s)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[i.chance.next(len(some))]
}

func (i *improvised) drop(s *improvisedStream) {
	i.streams = slices.DeleteFunc(i.streams, func(other *improvisedStream) bool { return other == s })
}

// tidy forgets a stream that both sides have ended.
func (i *improvised) tidy(s *improvisedStream) {
	if s.clientEnded && s.podEnded {
		i.drop(s)
	}
}

// released reports whether the pod has had a turn.
func (i *improvised) released() bool { return i.podEnd != nil }

// speak has one end say one thing.
func (i *improvised) speak() {
	if i.chance.next(2) == 0 {
		i.speakAsClient()
	} else if i.released() || len(i.streams) > 0 {
		i.speakAsPod()
	}
}

func (i *improvised) speakAsClient() {
	switch i.chance.next(10) {
	case 0, 1, 2:
		i.open()
	case 3, 4:
		i.sendBody()
	case 5:
		if s := i.pick(func(s *improvisedStream) bool { return !s.clientEnded }); s != nil {
			i.client().shaped(s.id, i.shape(true), i.fields("t", "1")...)
			s.clientEnded = true
			i.tidy(s)
		}
	case 6:
		if s := i.pick(func(*improvisedStream) bool { return true }); s != nil {
			i.forget(s.id, http2.ErrCode(i.chance.next(14)), s.sent)
			if !i.released() {
				i.window += s.sent
			}
			i.drop(s)
		}
	case 7:
		if s := i.pick(func(*improvisedStream) bool { return true }); s != nil && i.chance.next(2) == 0 {
			i.client().grant(s.id, uint32(1+i.chance.next(256)))
		} else {
			i.client().grant(0, uint32(1+i.chance.next(256)))
		}
	case 8:
		i.setAs(i.client())
	case 9:
		i.remark()
	}
}

func (i *improvised) open() {
	if i.left || len(i.streams) >= 50 {
		return
	}
	i.last += uint32(2 + 2*i.chance.next(3))
	s := &improvisedStream{id: i.last - 1, clientEnded: i.chance.next(2) == 0}
	i.streams = append(i.streams, s)
	i.client().shaped(s.id, i.shape(s.clientEnded), i.fields(post()...)...)
}

// sendBody has the client send a part of a body.
func (i *improvised) sendBody() {
	s := i.pick(func(s *improvisedStream) bool { return !s.clientEnded })
	if s == nil {
		return
	}
	body, padding := i.text(), i.chance.next(3)*100-1
	bytes := len(body) + padding + 1
	if bytes > i.window {
		return
	}
	i.window -= bytes
	s.sent += bytes
	s.clientEnded = i.chance.next(4) == 0
	if padding < 0 {
		i.client().data(s.id, s.clientEnded, body)
	} else {
		i.client().padded(s.id, s.clientEnded, body, padding)
	}
	i.tidy(s)
}

// setAs has an end send SETTINGS.
func (i *improvised) setAs(e *end) {
	if i.settings++; i.settings > 20 {
		return
	}
	var settings []http2.Setting
	for range i.chance.next(3) {
		settings = append(settings, []http2.Setting{
			{ID: http2.SettingInitialWindowSize, Val: uint32(i.chance.next(256)) << 12},
			{ID: http2.SettingHeaderTableSize, Val: uint32(i.chance.next(3)) * 100},
			{ID: http2.SettingMaxConcurrentStreams, Val: uint32(i.chance.next(256))},
			{ID: http2.SettingMaxHeaderListSize, Val: 1 << 16},
			{ID: http2.SettingMaxFrameSize, Val: 1 << 15},
			{ID: http2.SettingID(0xf00 + i.chance.next(3)), Val: uint32(i.chance.next(256))},
		}[i.chance.next(6)])
	}
	e.settings(settings...)
}

// remark has the client say something of the connection.
func (i *improvised) remark() {
	switch i.chance.next(4) {
	case 0:
		i.ping(fmt.Sprintf("ping%04d", i.chance.next(256)))
	case 1:
		i.client().write(func(f *http2.Framer) error {
			return f.WritePriority(i.last+1, http2.PriorityParam{Weight: uint8(i.chance.next(256))})
		})
	case 2:
		if i.released() {
			i.client().raw(http2.FrameType(0xe0+i.chance.next(4)), http2.Flags(i.chance.next(256)), 0, i.text())
		}
	case 3:
		if !i.leaving {
			i.leaving = true
			i.client().goAway(0, http2.ErrCode(i.chance.next(14)), "bye")
		}
	}
}

func (i *improvised) speakAsPod() {
	switch i.chance.next(10) {
	case 0, 1, 2:
		if s := i.pick(func(s *improvisedStream) bool { return !s.responded }); s != nil {
			i.respond(s)
		}
	case 3, 4:
		if s := i.pick(func(s *improvisedStream) bool { return s.responded && !s.podEnded }); s != nil {
			s.podEnded = i.chance.next(4) == 0
			if i.chance.next(2) == 0 {
				i.pod().data(s.id, s.podEnded, i.text())
			} else {
				i.pod().padded(s.id, s.podEnded, i.text(), i.chance.next(256))
			}
			i.tidy(s)
		}
	case 5:
		if s := i.pick(func(s *improvisedStream) bool { return s.responded && !s.podEnded }); s != nil {
			i.pod().shaped(s.id, i.shape(true), i.fields("grpc-status", "0")...)
			s.podEnded = true
			i.tidy(s)
		}
	case 6:
		if s := i.pick(func(*improvisedStream) bool { return true }); s != nil {
			i.pod().reset(s.id, http2.ErrCode(i.chance.next(14)))
			i.drop(s)
		}
	case 7:
		if s := i.pick(func(s *improvisedStream) bool { return !s.clientEnded }); s != nil && i.chance.next(2) == 0 {
			i.pod().grant(s.id, uint32(1+i.chance.next(256)))
		} else {
			grant := 1 + i.chance.next(256)
			i.window += grant
			i.pod().grant(0, uint32(grant))
		}
	case 8:
		i.setAs(i.pod())
	case 9:
		i.podRemark()
	}
}

func (i *improvised) respond(s *improvisedStream) {
	if i.chance.next(4) == 0 {
		i.pod().shaped(s.id, i.shape(false), i.fields(":status", "103")...)
		return
	}
	s.responded, s.podEnded = true, i.chance.next(3) == 0
	i.pod().shaped(s.id, i.shape(s.podEnded), i.fields(":status", "200")...)
	i.tidy(s)
}

// podRemark has the pod say something of the connection.
func (i *improvised) podRemark() {
	switch i.chance.next(3) {
	case 0:
		i.pod().ping(fmt.Sprintf("pod-%04d", i.chance.next(256)))
	case 1:
		i.pod().raw(http2.FrameType(0xe0+i.chance.next(4)), http2.Flags(i.chance.next(256)), 0, i.text())
	case 2:
		if i.left || len(i.streams) == 0 {
			return
		}
		i.left = true
		last := i.streams[i.chance.next(len(i.streams))].id
		i.pod().goAway(last, http2.ErrCode(i.chance.next(14)), i.text())
		i.streams = slices.DeleteFunc(i.streams, func(s *improvisedStream) bool { return s.id > last })
	}
}

// improvise has both ends talk, and returns what they have seen; false when there
// was nothing that a pod was needed for.
func improvise(t *testing.T, by route, decisions []byte) (client, pod observed, talked bool) {
	t.Helper()
	i := &improvised{conversation: newConversation(t, by, nil, nil), chance: decisions, window: initialWindow}
	for len(i.chance) > 0 {
		i.speak()
	}
	if !i.released() && len(i.streams) == 0 {
		return observed{}, observed{}, false
	}
	client, pod = i.finish()
	return client, pod, true
}

// FuzzConversation compares what random clients and pods see of each other through a
// resolver, held and awake, with what they see directly.
func FuzzConversation(f *testing.F) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		decisions := make([]byte, 20+random.IntN(300))
		for i := range decisions {
			decisions[i] = byte(random.Uint32())
		}
		f.Add(decisions)
	}
	f.Fuzz(func(t *testing.T, decisions []byte) {
		decisions = decisions[:min(len(decisions), 1000)]
		wantClient, wantPod, talked := improvise(t, direct, decisions)
		if !talked {
			return
		}
		for _, by := range []route{awake, held} {
			client, pod, _ := improvise(t, by, decisions)
			expectEqual(t, by, "client", client, wantClient)
			expectEqual(t, by, "pod", pod, wantPod)
		}
	})
}
