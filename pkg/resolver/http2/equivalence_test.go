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
	"testing"

	"golang.org/x/net/http2"
)

// ok is a response without a body.
var ok = []string{":status", "200"}

// conversations are what HTTP/2 allows a client and a pod to say to each other.
var conversations = []struct {
	name        string
	client, pod []http2.Setting
	play        func(c *conversation)
}{
	{name: "one request", play: func(c *conversation) {
		c.client().headers(1, true, get("accept", "*/*")...)
		c.pod().headers(1, true, ":status", "204", "server", "pod")
	}},
	{name: "bodies both ways", play: func(c *conversation) {
		c.client().headers(1, false, post("content-length", "8")...)
		c.client().data(1, false, "body")
		c.client().data(1, true, "more")
		c.pod().headers(1, false, ok...)
		c.pod().data(1, false, "response")
		c.pod().data(1, true, long(maxFrame))
	}},
	{name: "several streams in turn", play: func(c *conversation) {
		for id := uint32(1); id < 12; id += 2 {
			c.client().headers(id, false, post("x-id", long(int(id)))...)
		}
		for i := range 4 {
			for id := uint32(11); id < 12; id -= 2 {
				c.client().data(id, i == 3, long(int(id)*(i+1)))
			}
		}
		for id := uint32(1); id < 12; id += 2 {
			c.pod().headers(id, false, ok...)
		}
		for i := range 4 {
			for id := uint32(1); id < 12; id += 2 {
				c.pod().data(id, i == 3, long(int(id)+i))
			}
		}
	}},
	{name: "a conversation on one stream", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().headers(1, false, ok...)
		for range 5 {
			c.client().data(1, false, "request")
			c.pod().data(1, false, "response")
		}
		c.client().data(1, true, "")
		c.pod().headers(1, true, "grpc-status", "0")
	}},
	{name: "padding", play: func(c *conversation) {
		c.client().shaped(1, shape{padding: 200}, post()...)
		c.client().padded(1, false, "body", 255)
		c.client().padded(1, false, "", 0)
		c.client().padded(1, true, "", 9)
		c.pod().headers(1, false, ok...)
		c.pod().padded(1, false, "response", 100)
		c.pod().padded(1, true, "", 255)
	}},
	{name: "priorities", play: func(c *conversation) {
		c.client().write(func(f *http2.Framer) error { return f.WritePriority(3, http2.PriorityParam{StreamDep: 1, Weight: 3}) })
		c.client().shaped(1, shape{end: true, priority: http2.PriorityParam{StreamDep: 3, Exclusive: true, Weight: 9}}, get()...)
		c.client().shaped(3, shape{end: true, padding: 3, priority: http2.PriorityParam{Weight: 255}}, get()...)
		c.client().write(func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{Weight: 200}) })
		c.pod().headers(3, true, ok...)
		c.client().write(func(f *http2.Framer) error { return f.WritePriority(3, http2.PriorityParam{Weight: 1}) })
		c.pod().headers(1, true, ok...)
	}},
	{name: "CONTINUATION", play: func(c *conversation) {
		c.client().shaped(1, shape{end: true, splits: []int{0, 1, 1, 20}}, get("a", long(300))...)
		c.pod().shaped(1, shape{splits: []int{1, 2, 50}}, ":status", "200", "b", long(300))
		c.pod().data(1, false, "response")
		c.pod().shaped(1, shape{end: true, splits: []int{0, 3}}, "c", long(30))
	}},
	{name: "large header blocks", play: func(c *conversation) {
		c.client().headers(1, false, post("a", long(20_000), "b", "é"+long(20_000))...)
		c.client().headers(1, true, "t", long(30_000))
		c.pod().headers(1, false, ":status", "200", "a", long(100_000))
		c.pod().headers(1, true, "t", long(50_000))
	}},
	{name: "header fields that repeat over the life of a connection", play: func(c *conversation) {
		for id := uint32(1); id < 60; id += 2 {
			c.client().headers(id, true, get("cookie", "a=b", "cookie", "c=d", "x", long(int(id*7)%90), "y", "", "z", "\xff\x01")...)
			c.pod().headers(id, true, ":status", "200", "set-cookie", "a", "set-cookie", "b", "x", long(int(id*5)%70), "e", "")
		}
	}},
	{name: "fields that are never to be indexed", play: func(c *conversation) {
		c.client().shaped(1, shape{end: true, secret: true}, get("authorization", "secret")...)
		c.pod().shaped(1, shape{end: true, secret: true}, ":status", "200", "set-cookie", "secret")
		c.client().headers(3, true, get("authorization", "secret")...)
		c.pod().headers(3, true, ok...)
	}},
	{name: "trailers", play: func(c *conversation) {
		c.client().headers(1, false, post("te", "trailers", "trailer", "t")...)
		c.client().data(1, false, "body")
		c.client().headers(1, true, "t", "1", "u", "2")
		c.client().headers(3, false, post()...)
		c.client().headers(3, true, "t", "alone")
		c.pod().headers(1, false, ok...)
		c.pod().data(1, false, "response")
		c.pod().headers(1, true, "grpc-status", "0", "grpc-message", "")
		c.pod().headers(3, false, ok...)
		c.pod().headers(3, true, "t", "alone")
	}},
	{name: "interim responses", play: func(c *conversation) {
		c.client().headers(1, false, post("expect", "100-continue")...)
		c.pod().headers(1, false, ":status", "103", "link", "</a>")
		c.pod().headers(1, false, ":status", "103", "link", "</b>")
		c.pod().headers(1, false, ":status", "100")
		c.client().data(1, true, "body")
		c.pod().headers(1, false, ok...)
		c.pod().data(1, true, "response")
	}},
	{name: "windows of zero", client: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}},
		pod: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, play: func(c *conversation) {
			c.client().headers(1, false, post()...)
			c.pod().headers(1, false, ok...)
			c.pod().data(1, false, "")
			c.pod().grant(1, 4)
			c.client().grant(1, 6)
			c.client().data(1, true, "body")
			c.pod().data(1, true, "response")
		}},
	{name: "all of the window of a connection", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		for range 4 {
			c.client().data(1, false, long(16_000))
		}
		c.client().padded(1, false, long(1000), 255)
		c.client().data(1, false, long(279))
		c.pod().grant(0, 1)
		c.pod().grant(1, 1)
		c.client().data(1, true, "x")
		c.pod().headers(1, true, ok...)
	}},
	{name: "windows that grow", play: func(c *conversation) {
		c.client().grant(0, 1)
		c.client().headers(1, false, post()...)
		c.client().grant(1, 5)
		c.client().grant(0, 1<<30)
		c.client().grant(1, 1<<31-1-65535-5)
		c.client().headers(3, true, get()...)
		c.client().grant(3, 7)
		c.client().data(1, true, "")
		c.pod().grant(0, 1<<31-1-65535)
		c.pod().grant(1, 10)
		c.pod().headers(1, true, ok...)
		c.client().grant(0, 3)
		c.client().grant(3, 9)
		c.pod().headers(3, true, ok...)
	}},
	{name: "SETTINGS at any time", client: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1}}, play: func(c *conversation) {
		c.client().settings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}, http2.Setting{ID: 0xfe, Val: 3})
		c.client().headers(1, false, post()...)
		c.client().settings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1 << 16})
		c.client().settings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
		c.pod().headers(1, false, ok...)
		c.pod().settings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}, http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1}, http2.Setting{ID: 0xff, Val: 9})
		c.client().data(1, false, "body")
		c.client().settings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
		c.client().settings()
		c.pod().data(1, true, "a")
		c.pod().settings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		c.pod().settings()
		c.client().data(1, true, "body")
	}},
	{name: "tables of zero", client: []http2.Setting{{ID: http2.SettingHeaderTableSize, Val: 0}},
		pod: []http2.Setting{{ID: http2.SettingHeaderTableSize, Val: 0}}, play: func(c *conversation) {
			for id := uint32(1); id < 8; id += 2 {
				c.client().headers(id, true, get("a", "b")...)
				c.pod().headers(id, false, ":status", "200", "c", "d")
				c.pod().headers(id, true, "c", "d")
			}
		}},
	{name: "tables that change", client: []http2.Setting{{ID: http2.SettingHeaderTableSize, Val: 100}}, play: func(c *conversation) {
		c.client().headers(1, true, get("a", "b")...)
		c.client().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
		c.client().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 200})
		c.pod().headers(1, true, ":status", "200", "c", "d")
		c.pod().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 50})
		c.client().headers(3, true, get("a", "b", "e", "f")...)
		c.pod().headers(3, true, ":status", "200", "c", "d", "e", "f")
		c.pod().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 4096})
		c.client().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 4096})
		c.client().headers(5, true, get("a", "b", "e", "f")...)
		c.pod().headers(5, true, ":status", "200", "c", "d", "e", "f")
		c.client().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
		c.client().headers(7, true, get("a", "b", "e", "f")...)
		c.pod().headers(7, true, ":status", "200", "c", "d", "e", "f")
	}},
	{name: "PING from both", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.ping("while it")
		c.pod().ping("of a pod")
		c.client().ping("a client")
		c.pod().headers(1, true, ok...)
	}},
	{name: "a client resets", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.client().headers(3, false, post()...)
		c.client().headers(5, true, get()...)
		c.pod().headers(3, false, ok...)
		c.client().data(3, false, "body")
		c.client().reset(3, http2.ErrCodeCancel)
		c.pod().headers(1, true, ok...)
		c.client().reset(1, http2.ErrCodeNo)
		c.client().reset(5, http2.ErrCodeInternal)
		c.client().headers(7, true, get()...)
		c.pod().headers(7, true, ok...)
	}},
	{name: "a client resets what need not be known of", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.client().data(1, false, "body")
		c.client().headers(3, false, post("a", "b")...)
		c.client().data(3, false, "body")
		c.forget(1, http2.ErrCodeCancel, 4)
		c.client().headers(5, true, get("a", "b")...)
		c.pod().headers(5, true, ok...)
		c.pod().headers(3, false, ok...)
		c.client().data(3, true, "more")
		c.pod().data(3, true, "response")
	}},
	{name: "a pod resets", play: func(c *conversation) {
		for id := uint32(1); id < 10; id += 2 {
			c.client().headers(id, id == 1, post()...)
		}
		c.pod().reset(1, http2.ErrCodeRefusedStream)
		c.pod().headers(3, false, ok...)
		c.pod().reset(3, http2.ErrCodeInternal)
		c.pod().headers(5, true, ":status", "413")
		c.pod().reset(5, http2.ErrCodeNo)
		c.pod().headers(7, false, ok...)
		c.pod().data(7, true, "early")
		c.client().data(7, false, "body")
		c.pod().reset(7, http2.ErrCodeNo)
		c.pod().reset(9, http2.ErrCode(0xabc))
		c.client().headers(11, true, get()...)
		c.pod().headers(11, true, ok...)
	}},
	{name: "frames that cross a reset", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.client().headers(3, false, post()...)
		c.pod().headers(1, false, ok...)
		c.client().reset(1, http2.ErrCodeCancel)
		c.pod().data(1, false, "response")
		c.pod().grant(1, 5)
		c.pod().headers(1, true, "t", "1")
		c.pod().reset(3, http2.ErrCodeCancel)
		c.client().data(3, false, "body")
		c.client().grant(3, 5)
		c.client().headers(3, true, "t", "1")
		c.pod().ping("at last.")
	}},
	{name: "a response before the body is complete", play: func(c *conversation) {
		c.client().headers(1, false, post("content-length", "1000")...)
		c.client().data(1, false, long(100))
		c.pod().headers(1, false, ":status", "401")
		c.pod().data(1, true, "no")
		c.client().data(1, false, long(800))
		c.client().data(1, true, long(100))
		c.client().headers(3, true, get()...)
		c.pod().headers(3, true, ok...)
	}},
	{name: "each way to end a stream", play: func(c *conversation) {
		c.client().headers(1, true, get()...)
		c.client().headers(3, false, post()...)
		c.client().data(3, true, "")
		c.client().headers(5, false, post()...)
		c.client().data(5, false, "")
		c.client().data(5, true, "x")
		c.client().headers(7, false, post()...)
		c.client().headers(7, true, "t", "1")
		c.pod().headers(7, true, ok...)
		c.pod().headers(5, false, ok...)
		c.pod().data(5, true, "")
		c.pod().headers(3, false, ok...)
		c.pod().data(3, false, "")
		c.pod().data(3, true, "x")
		c.pod().headers(1, false, ok...)
		c.pod().headers(1, true, "t", "1")
	}},
	{name: "frames of unknown types", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().raw(0xee, 0xa5, 0, "of the pod")
		c.pod().raw(0xef, 0xff, 1, "")
		c.client().raw(0xee, 0x5a, 0, "of the client")
		c.client().raw(0x10, 0, 0, "\x00\x00\x00\x01u=1")
		c.client().raw(0xef, 0, 1, long(maxFrame))
		c.pod().raw(http2.FrameData, 0xf0|http2.FlagDataEndStream, 1, "flags")
	}},
	{name: "extended CONNECT", pod: []http2.Setting{{ID: http2.SettingEnableConnectProtocol, Val: 1}}, play: func(c *conversation) {
		c.client().headers(1, true, get()...)
		c.pod().headers(1, true, ok...)
		c.client().headers(3, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":path", "/chat", ":authority", "cart", "sec-websocket-version", "13")
		c.pod().headers(3, false, ok...)
		c.client().data(3, false, "\x81\x05hello")
		c.pod().data(3, false, "\x81\x05hello")
		c.client().data(3, true, "")
		c.pod().data(3, true, "")
	}},
	{name: "methods and targets", play: func(c *conversation) {
		id := uint32(1)
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "M-SEARCH", "get"} {
			for _, path := range []string{"/", "*", "/%2F/../a?b=%20&c", "//d//e", "/?", "/é"} {
				c.client().headers(id, true, ":path", path, ":authority", "cart:80", ":method", method, ":scheme", "https", "host", "other")
				id += 2
			}
		}
		for responded := uint32(1); responded < id; responded += 2 {
			c.pod().headers(responded, true, ":status", "200", "content-length", "9")
		}
	}},
	{name: "streams that are left out", play: func(c *conversation) {
		c.client().headers(5, true, get()...)
		c.client().headers(1001, true, get()...)
		c.pod().headers(1001, true, ok...)
		c.client().headers(maxStreamID, true, get()...)
		c.pod().headers(maxStreamID, true, ok...)
		c.pod().headers(5, true, ok...)
	}},
	{name: "a pod leaves", play: func(c *conversation) {
		for id := uint32(1); id < 8; id += 2 {
			c.client().headers(id, false, post()...)
		}
		c.pod().goAway(maxStreamID, http2.ErrCodeNo, "")
		c.pod().headers(1, false, ok...)
		c.pod().goAway(3, http2.ErrCodeNo, "bye")
		c.client().data(1, true, "body")
		c.pod().data(1, true, "response")
		c.pod().headers(3, true, ok...)
		c.client().data(3, true, "body")
		c.pod().goAway(3, http2.ErrCodeNo, "")
		c.pod().finish()
		c.clientEnd.awaitEnd()
		c.clientEnd.finish()
		c.podEnd.awaitEnd()
	}},
	{name: "a pod leaves in anger", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().goAway(0, http2.ErrCodeEnhanceYourCalm, "too_many_pings")
		c.pod().finish()
		c.clientEnd.awaitEnd()
		c.clientEnd.finish()
		c.podEnd.awaitEnd()
	}},
	{name: "a client leaves", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().headers(1, false, ok...)
		c.client().goAway(0, http2.ErrCodeNo, "done")
		c.client().data(1, true, "body")
		c.pod().data(1, true, "response")
		c.client().finish()
		c.podEnd.awaitEnd()
		c.podEnd.finish()
		c.clientEnd.awaitEnd()
	}},
	{name: "a client leaves before it gets a response", play: func(c *conversation) {
		c.client().headers(1, true, get()...)
		c.client().goAway(0, http2.ErrCodeNo, "done")
		c.pod().headers(1, true, ok...)
	}},
	{name: "a client finishes writing", play: func(c *conversation) {
		c.client().headers(1, true, get()...)
		c.pod().headers(1, false, ok...)
		c.client().finish()
		c.podEnd.awaitEnd()
		c.podEnd.data(1, false, "response")
		c.podEnd.data(1, true, "")
		c.podEnd.finish()
		c.clientEnd.awaitEnd()
	}},
	{name: "a client closes", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().headers(1, false, ok...)
		c.client().data(1, false, "body")
		c.pod()
		c.clientEnd.finish()
		c.podEnd.awaitEnd()
	}},
	{name: "a client resets the connection", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().headers(1, false, ok...)
		c.client().sync()
		_ = c.clientEnd.conn.SetLinger(0)
		c.clientEnd.conn.Close()
		c.podEnd.awaitEnd()
		<-c.clientEnd.done
	}},
	{name: "a pod closes", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().headers(1, false, ok...)
		c.pod().data(1, false, "response")
		c.pod().finish()
		c.clientEnd.awaitEnd()
		c.clientEnd.finish()
		c.podEnd.awaitEnd()
	}},
	{name: "a pod resets the connection", play: func(c *conversation) {
		c.client().headers(1, false, post()...)
		c.pod().headers(1, false, ok...)
		c.client().sync()
		c.pod().sync()
		_ = c.podEnd.conn.SetLinger(0)
		c.podEnd.conn.Close()
		c.clientEnd.awaitEnd()
		<-c.podEnd.done
	}},
}

// TestConversationsAreAlike compares what a client and a pod see through a resolver, held
// and awake, with what they see directly.
func TestConversationsAreAlike(t *testing.T) {
	for _, test := range conversations {
		t.Run(test.name, func(t *testing.T) {
			var client, pod observed
			for _, by := range []route{direct, awake, held} {
				c := newConversation(t, by, test.client, test.pod)
				test.play(c)
				gotClient, gotPod := c.finish()
				if by == direct {
					client, pod = gotClient, gotPod
					continue
				}
				expectEqual(t, by, "client", gotClient, client)
				expectEqual(t, by, "pod", gotPod, pod)
			}
		})
	}
}
