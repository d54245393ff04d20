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

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// goodbye is what the application sends once a client has finished writing.
const goodbye = "bye\n"

// streamBytes is how much is sent over raw TCP.
const streamBytes = 8 << 20

func streamConversations() []conversation {
	return []conversation{
		{"TCPClientFirst", tcpClientFirst},
		{"TCPHalfCloseAtOnce", tcpHalfCloseAtOnce},
		{"TCPServerFirst", tcpServerFirst},
		{"TLSPassedThrough", tlsPassedThrough},
	}
}

// tcpClientFirst sends many bytes, reads them back, and closes its writing side before it
// has read all of them.
func tcpClientFirst(ctx context.Context, h *host) error {
	conn, err := h.dial(ctx, portEcho)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The bytes must not be detected as HTTP.
	return exchangeAll(conn, io.MultiReader(bytes.NewReader([]byte{0, 1, 2, 'G', 'E', 'T', ' '}), newSummed(streamBytes)))
}

// tcpHalfCloseAtOnce sends everything and finishes writing before a pod is ready.
func tcpHalfCloseAtOnce(ctx context.Context, h *host) error {
	conn, err := h.dial(ctx, portEcho)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "\x00all"); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "\x00all"+goodbye {
		return fmt.Errorf("read %q, %w", got, err)
	}
	return nil
}

// tcpServerFirst sends nothing before it has received the greeting.
func tcpServerFirst(ctx context.Context, h *host) error {
	conn, err := h.dial(ctx, portGreeting)
	if err != nil {
		return err
	}
	defer conn.Close()
	const greeting = "220 ready\r\n"
	got := make([]byte, len(greeting))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != greeting {
		return fmt.Errorf("the greeting is %q, %w", got, err)
	}
	return exchangeAll(conn, newSummed(streamBytes))
}

// exchangeAll sends everything, finishes writing, and expects it back followed by
// goodbye.
func exchangeAll(conn *net.TCPConn, data io.Reader) error {
	sum := sha256.New()
	sending := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, io.TeeReader(data, sum))
		sending <- errors.Join(err, conn.CloseWrite())
	}()
	received := &bytes.Buffer{}
	_, err := io.Copy(received, conn)
	if err := errors.Join(err, <-sending); err != nil {
		return err
	}
	echoed, found := bytes.CutSuffix(received.Bytes(), []byte(goodbye))
	if got := sha256.Sum256(echoed); !found || !bytes.Equal(got[:], sum.Sum(nil)) {
		return fmt.Errorf("%d bytes came back, goodbye: %t, or others than were sent", len(echoed), found)
	}
	return nil
}

// tlsPassedThrough checks that the client gets the certificate of the application and
// its choice of a protocol, and the application gets the requested server name.
func tlsPassedThrough(ctx context.Context, h *host) error {
	for _, protocol := range []string{"h2", "http/1.1"} {
		transport := &http.Transport{
			ForceAttemptHTTP2: protocol == "h2",
			TLSClientConfig: &tls.Config{
				ServerName: "shop.example.com",
				NextProtos: []string{protocol},
				// The application's certificate is self-signed; it is checked below.
				InsecureSkipVerify: true,
			},
		}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+h.at(portTLS)+"/", nil)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close(), expectStatus(response, http.StatusOK)); err != nil {
			return err
		}
		if want := "shop.example.com " + protocol; string(body) != want {
			return fmt.Errorf("the application saw %q, want %q", body, want)
		}
		if name := response.TLS.PeerCertificates[0].Subject.CommonName; name == "" || name == "elasti-resolver" {
			return fmt.Errorf("the certificate is that of %q", name)
		}
	}
	return nil
}
