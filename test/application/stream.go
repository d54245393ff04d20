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

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// goodbye is sent to a client after it has finished writing.
const goodbye = "bye\n"

// echo sends back what it receives, and goodbye once the client has finished writing.
// A client whose half-close closed the whole connection would not receive goodbye.
func echo(conn *net.TCPConn) {
	if _, err := io.Copy(conn, struct{ io.Reader }{conn}); err != nil {
		return
	}
	_, _ = io.WriteString(conn, goodbye)
}

// greet sends a line first, and then is an echo.
func greet(conn *net.TCPConn) {
	if _, err := io.WriteString(conn, "220 ready\r\n"); err != nil {
		return
	}
	echo(conn)
}

// mirror responds to each HTTP/1.x request with the bytes of its headers as received.
// A request has no body, or one with a Content-Length, which is skipped.
func mirror(conn *net.TCPConn) {
	reader := bufio.NewReader(conn)
	for {
		headers, length, err := readHeaders(reader)
		if err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, reader, length); err != nil {
			return
		}
		if _, err := fmt.Fprintf(conn, "HTTP/1.1 200 Mirrored As It Came\r\nX-ODD-case:  kept \r\nContent-Length: %d\r\n\r\n%s", len(headers), headers); err != nil {
			return
		}
		first, _, _ := bytes.Cut(headers, []byte("\r\n"))
		if bytes.HasSuffix(first, []byte("HTTP/1.0")) {
			return
		}
	}
}

// readHeaders reads up to the empty line, and returns the Content-Length.
func readHeaders(reader *bufio.Reader) (headers []byte, length int64, err error) {
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return nil, 0, err
		}
		headers = append(headers, line...)
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		switch {
		case name == "":
			return headers, length, nil
		case strings.EqualFold(name, "Content-Length"):
			if length, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil {
				return nil, 0, err
			}
		}
	}
}

// newCertificate creates a self-signed certificate with the name of the host. It does not
// use test/certificates, with which the image would contain packages of client-go.
func newCertificate(hostname string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: hostname},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}, nil
}

// serveTLS responds, in HTTP over TLS, with the server name and the negotiated protocol
// of the handshake.
func serveTLS(certificate tls.Certificate) func(context.Context, net.Listener) error {
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	serve := serveHTTP(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		fmt.Fprintf(response, "%s %s", request.TLS.ServerName, request.TLS.NegotiatedProtocol)
	}))
	return func(ctx context.Context, listener net.Listener) error {
		return serve(ctx, tls.NewListener(listener, config))
	}
}
