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

package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/clientaddress"
)

// What is accepted is framed as net/http frames it, wherever that accepts it
// too: the two never disagree about where a request ends.
func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close, TE\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.0\r\nKeep-Alive: x\r\nConnection: keep-alive\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n x\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var h messageHeader
		if h.parseRequest(data) != nil {
			return
		}
		if !headerEnds(h.raw, 0) || headerEnds(h.raw[:len(h.raw)-1], 0) {
			t.Fatalf("the header %q is found to end elsewhere while it is read", h.raw)
		}
		request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return
		}
		chunked := slices.Equal(request.TransferEncoding, []string{"chunked"})
		if h.chunked != chunked || (!chunked && max(0, h.contentLength) != request.ContentLength) {
			t.Fatalf("%q: chunked %t, length %d, and for net/http %t, %d", data, h.chunked, h.contentLength, chunked, request.ContentLength)
		}
		// What is left out when it is forwarded are whole lines.
		if sent := appendWithout(nil, h.raw, h.cuts); len(h.cuts) > 0 {
			var again messageHeader
			if err := again.parseRequest(sent); err != nil || len(again.cuts) > 0 || again.chunked != h.chunked || again.contentLength != h.contentLength {
				t.Fatalf("%q is forwarded as %q (%v)", h.raw, sent, err)
			}
		}
	})
}

// FuzzEdit edits headers in every way: a request that could be split in one way only
// still is, and its last address is that of the client.
func FuzzEdit(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: b\r\nx-forwarded-for:c\r\nConnection: x-forwarded-for, close\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nForwarded: for=b\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c, websocket\r\nHTTP2-Settings: AAMAAABk\r\n\r\nhello",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-Forwarded-For: \"\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\nX-Forwarded-For \r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	client := clientaddress.FieldOf(v1alpha1.ClientAddressXForwardedFor, netip.MustParseAddr("192.0.2.1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h messageHeader
		if h.parseRequest(data) != nil {
			return
		}
		for _, edit := range []headerEdit{{withoutH2C: true}, {client: client}, {withoutH2C: true, client: client}} {
			edited, _ := edit.appendHeader(nil, h.raw)
			var again messageHeader
			if err := again.parseRequest(edited); err != nil {
				t.Fatalf("%q became %q: %v", h.raw, edited, err)
			}
			if len(again.raw) != len(edited) || again.chunked != h.chunked || again.contentLength != h.contentLength || again.close != h.close ||
				!bytes.Equal(again.method, h.method) || !bytes.Equal(again.target, h.target) {
				t.Fatalf("%q became %q", h.raw, edited)
			}
			values := again.values(client.Name)
			if edit.client.Name != "" && (len(values) != 1 || !strings.HasSuffix(values[0], client.Value)) {
				t.Fatalf("of %q, %q has the addresses %q", h.raw, edited, values)
			}
		}
	})
}

// However a body is cut, its end is found at the same place, and it is one that
// net/http can read.
func FuzzChunks(f *testing.F) {
	for _, seed := range []string{"0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\nGET /", "00005\r\nhello\r\n0\r\n\r\n", "5\nhello\n0\n\n"} {
		f.Add([]byte(seed), byte(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, size byte) {
		var whole chunkScanner
		end, done, err := whole.scan(data)

		var pieces chunkScanner
		sum := 0
		var pieceErr error
		pieceDone := false
		for piece := range slices.Chunk(data, max(1, int(size))) {
			var n int
			if n, pieceDone, pieceErr = pieces.scan(piece); n < len(piece) || pieceErr != nil || pieceDone {
				sum += n
				break
			}
			sum += n
		}
		if pieceDone != done || (pieceErr != nil) != (err != nil) || sum != end {
			t.Fatalf("%q ends at %d (%t, %v), and in pieces of %d at %d (%t, %v)", data, end, done, err, size, sum, pieceDone, pieceErr)
		}
		if !done {
			return
		}
		reader := bufio.NewReader(bytes.NewReader(data[:end]))
		if _, err := io.Copy(io.Discard, httputil.NewChunkedReader(reader)); err != nil && !bytes.ContainsAny(data[:end], ";") {
			t.Fatalf("net/http cannot read %q: %v", data[:end], err)
		}
	})
}

func BenchmarkParseRequest(b *testing.B) {
	data := []byte("GET /path/to/something?x=1 HTTP/1.1\r\nHost: cart.shop.svc.cluster.local\r\nUser-Agent: curl/8.0\r\nAccept: */*\r\nX-Request-Id: 0123456789abcdef\r\nCookie: session=abcdefghijklmnopqrstuvwxyz\r\nConnection: keep-alive\r\n\r\n")
	var h messageHeader
	b.ReportAllocs()
	for b.Loop() {
		if !headerEnds(data, 0) {
			b.Fatal("the header does not end")
		}
		if err := h.parseRequest(data); err != nil {
			b.Fatal(err)
		}
	}
}
