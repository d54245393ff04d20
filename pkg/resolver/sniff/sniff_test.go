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

package sniff

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDetect(t *testing.T) {
	for name, test := range map[string]struct {
		data string
		want Protocol
	}{
		"nothing":             {"", Undecided},
		"a request":           {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1},
		"HTTP/1.0":            {"GET / HTTP/1.0\r\n", HTTP1},
		"bare line feed":      {"GET / HTTP/1.1\n", HTTP1},
		"an unknown method":   {"M-SEARCH * HTTP/1.1\r\n", HTTP1},
		"an odd target":       {"GET /a b c HTTP/1.1\r\n", HTTP1},
		"h2c":                 {preface, HTTP2},
		"h2c and more":        {preface + "\x00\x00\x00\x04", HTTP2},
		"another PRI":         {"PRI * HTTP/2.0\r\nX: y\r\n", Stream},
		"HTTP/0.9":            {"GET /\r\n", Stream},
		"TLS":                 {"\x16\x03\x01\x02\x00\x01", Stream},
		"PostgreSQL":          {"\x00\x00\x00\x08\x04\xd2\x16\x2f", Stream},
		"Redis":               {"*1\r\n$4\r\nPING\r\n", Stream},
		"Redis, inline":       {"GET a\r\n", Stream},
		"memcached":           {"set a 0 0 5\r\nhello\r\n", Stream},
		"SSH":                 {"SSH-2.0-OpenSSH_9.2\r\n", Stream},
		"MQTT":                {"\x10\x10\x00\x04MQTT", Stream},
		"PROXY":               {"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", Stream},
		"a lone line":         {"\r\n", Stream},
		"NUL in the line":     {"GET /\x00 HTTP/1.1\r\n", Stream},
		"a very long word":    {strings.Repeat("A", 40), Stream},
		"a long word of HTTP": {strings.Repeat("A", 30) + " / HTTP/1.1\r\n", HTTP1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Detect([]byte(test.data)); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// The result does not depend on how the bytes are split.
func FuzzDetect(f *testing.F) {
	for _, seed := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", preface, "\x16\x03\x01", "*1\r\n", "PRI * HTTP/2.0\r\n\r\nXX", "GET a\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		detected := Undecided
		for end := range len(data) + 1 {
			got := Detect(data[:end])
			if detected != Undecided && got != detected {
				t.Fatalf("%q is %d, and with one byte more %d", data[:end-1], detected, got)
			}
			detected = got
		}
	})
}

// read calls Read with a client, and also returns how long it took.
func read(expectation Expectation, client func(net.Conn)) (Protocol, string, time.Duration, error) {
	local, remote := net.Pipe()
	defer local.Close()
	defer remote.Close()
	go client(remote)
	started := time.Now()
	protocol, data, err := Read(local, nil, expectation, Timeouts{Silence: 100 * time.Millisecond, Headers: 10 * time.Second})
	return protocol, string(data), time.Since(started), err
}

func TestRead(t *testing.T) {
	write := func(pause time.Duration, pieces ...string) func(net.Conn) {
		return func(conn net.Conn) {
			for _, piece := range pieces {
				<-time.After(pause)
				if _, err := io.WriteString(conn, piece); err != nil {
					return
				}
			}
			_, _ = conn.Read(make([]byte, 1))
		}
	}
	for name, test := range map[string]struct {
		expectation Expectation
		client      func(net.Conn)
		want        Protocol
		data        string
		took        time.Duration
	}{
		"a request at once":                   {AnyProtocol, write(0, "GET / HTTP/1.1\r\n"), HTTP1, "GET / HTTP/1.1\r\n", 0},
		"a request, slowly":                   {AnyProtocol, write(80*time.Millisecond, "GET /", " HTTP/1.1", "\r\n"), HTTP1, "GET / HTTP/1.1\r\n", 240 * time.Millisecond},
		"silence":                             {AnyProtocol, write(time.Hour), Stream, "", 100 * time.Millisecond},
		"half a word, then silence":           {AnyProtocol, write(0, "HELO"), Stream, "HELO", 100 * time.Millisecond},
		"silence where HTTP is spoken":        {AnyHTTP, write(time.Second, "GET / HTTP/1.1\r\n"), HTTP1, "GET / HTTP/1.1\r\n", time.Second},
		"something else where HTTP is spoken": {AnyHTTP, write(0, "*1\r\n"), HTTP1, "*1\r\n", 0},
		"no detection":                        {NoHTTP, write(0), Stream, "", 0},
		"a long path of another method":       {AnyProtocol, write(0, "PROPFIND /"+strings.Repeat("a", 3000)), HTTP1, "PROPFIND /" + strings.Repeat("a", firstRead-10), 0},
		"a long address of a proxy":           {AnyProtocol, write(0, "TRACE http://cart/"+strings.Repeat("a", 3000)), HTTP1, "TRACE http://cart/" + strings.Repeat("a", firstRead-18), 0},
		"a long line of another protocol":     {AnyProtocol, write(0, "AUTH "+strings.Repeat("a", 3000)), Stream, "AUTH " + strings.Repeat("a", firstRead-5), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				protocol, data, took, err := read(test.expectation, test.client)
				if err != nil || protocol != test.want || data != test.data || took != test.took {
					t.Errorf("got %d, %q, %v after %s, want %d, %q after %s", protocol, data, err, took, test.want, test.data, test.took)
				}
			})
		})
	}
}

// A client that has closed its writing side may wait for a response, also when it has
// sent nothing.
func TestReadOfAClientThatFinishes(t *testing.T) {
	for _, word := range []string{"", "HELO"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(client, word); err != nil {
			t.Fatal(err)
		}
		if err := client.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		protocol, data, err := Read(conn, nil, AnyProtocol, Timeouts{Silence: time.Hour, Headers: time.Hour})
		if err != nil || protocol != Stream || string(data) != word {
			t.Errorf("after %q: %d, %q, %v", word, protocol, data, err)
		}
	}
}

// A request line that does not end is left to the HTTP/1.x server, which accounts for
// its memory.
func TestReadKeepsLittleOfALine(t *testing.T) {
	for name, test := range map[string]struct {
		expectation Expectation
		line        string
	}{
		"any protocol": {AnyProtocol, "GET /"},
		"HTTP":         {AnyHTTP, "PROPFIND /"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				local, remote := net.Pipe()
				go func() { _, _ = io.WriteString(remote, test.line+strings.Repeat("a", 32<<10)) }()
				protocol, data, err := Read(local, nil, test.expectation, Timeouts{Silence: time.Second, Headers: time.Minute})
				if err != nil || protocol != HTTP1 || len(data) > firstRead {
					t.Errorf("got %d with %d bytes, %v", protocol, len(data), err)
				}
				remote.Close()
				local.Close()
			})
		})
	}
}

func TestReadTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, _, err := read(AnyHTTP, func(conn net.Conn) { _, _ = io.WriteString(conn, "GET /") })
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a request that does not continue: %v", err)
		}
		for expectation, text := range map[Expectation]string{AnyHTTP: "", AnyProtocol: "GET /"} {
			_, _, _, err = read(expectation, func(conn net.Conn) {
				_, _ = io.WriteString(conn, text)
				conn.Close()
			})
			if err == nil {
				t.Errorf("a client that disconnects after %q is served", text)
			}
		}
	})
}

func TestExpect(t *testing.T) {
	for appProtocol, want := range map[string]Expectation{
		"": AnyProtocol, "example.com/odd": AnyProtocol, "http": AnyHTTP, "HTTP": AnyHTTP,
		"kubernetes.io/h2c": AnyHTTP, "grpc": AnyHTTP, "https": NoHTTP, "kubernetes.io/wss": NoHTTP, "tcp": NoHTTP,
	} {
		if got := Expect(appProtocol); got != want {
			t.Errorf("%q: got %d, want %d", appProtocol, got, want)
		}
	}
}
