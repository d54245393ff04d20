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
	"bytes"
	"strings"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/clientaddress"
)

// The names of fields that are edited, in lower case.
const (
	fieldConnection    = "connection"
	fieldUpgrade       = "upgrade"
	fieldHTTP2Settings = "http2-settings"
)

// headerEdit is what is changed in the header of a request. The zero value is nothing.
type headerEdit struct {
	// withoutH2C takes out an h2c upgrade request: what comes after that is
	// not seen by anything between the client and the pod, and only a Service port
	// whose appProtocol says so expects it.
	withoutH2C bool
	// client is what tells the pod the address of the client. It goes behind what
	// the client itself wrote there, in one field: many applications read the first
	// one of a name only.
	client clientaddress.Field
}

// edit returns what is changed in the header of the current request.
func (c *conn) edit() headerEdit {
	e := headerEdit{withoutH2C: c.request.h2c && !speaksH2C(c.port.AppProtocol)}
	if header := c.service.Config().ClientHeader; header != "" {
		e.client = clientaddress.FieldOf(header, clientaddress.Of(c.address))
	}
	return e
}

// speaksH2C reports whether an appProtocol stands for HTTP/2 without TLS.
func speaksH2C(appProtocol string) bool {
	switch strings.ToLower(appProtocol) {
	case "kubernetes.io/h2c", "h2c":
		return true
	}
	return false
}

// listsH2C reports whether the value of an Upgrade field lists HTTP/2 without TLS.
func listsH2C(value []byte) bool {
	for protocol := range bytes.SplitSeq(value, []byte(",")) {
		if isH2C(protocol) {
			return true
		}
	}
	return false
}

func isH2C(protocol []byte) bool {
	name, _, _ := bytes.Cut(protocol, []byte("/"))
	name, _, _ = bytes.Cut(name, []byte(";"))
	return equalFold(trim(name), "h2c")
}

// found is what the fields of a header have that an edit depends on.
type found struct {
	// otherProtocol is true when another protocol than HTTP/2 is requested.
	otherProtocol bool
	// client is what the client wrote into the field that reports it.
	client [][]byte
}

func (e *headerEdit) find(fields []byte) found {
	var f found
	for line, rest, _ := nextLine(fields); len(line) > 0; line, rest, _ = nextLine(rest) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case equalFold(name, fieldUpgrade):
			f.otherProtocol = f.otherProtocol || len(without(value, isH2C)) > 0
		case e.tellsClient(name):
			if value = trim(value); len(value) > 0 {
				f.client = append(f.client, value)
			}
		}
	}
	return f
}

// tellsClient reports whether a name is that of the field that names the client.
func (e *headerEdit) tellsClient(name []byte) bool {
	return e.client.Name != "" && equalFold(name, e.client.Lower)
}

// appendHeader appends the header of a valid request with the changes, and returns
// whether it still requests another protocol.
func (e *headerEdit) appendHeader(message, header []byte) (_ []byte, upgrades bool) {
	line, fields, _ := nextLine(header)
	message = append(append(message, line...), "\r\n"...)
	has := e.find(fields)
	// An option that names what is taken out goes with it, and none takes out what
	// is put in.
	removed := func(option []byte) bool {
		option = trim(option)
		return e.withoutH2C && (equalFold(option, fieldHTTP2Settings) || !has.otherProtocol && equalFold(option, fieldUpgrade)) || e.tellsClient(option)
	}
	for line, rest, _ := nextLine(fields); len(line) > 0; line, rest, _ = nextLine(rest) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case e.tellsClient(name), e.withoutH2C && equalFold(name, fieldHTTP2Settings):
			continue
		case e.withoutH2C && equalFold(name, fieldUpgrade):
			message = appendList(message, name, value, isH2C)
			continue
		case equalFold(name, fieldConnection):
			upgrades = upgrades || has.otherProtocol && lists(value, fieldUpgrade)
			if e.withoutH2C || lists(value, e.client.Lower) {
				message = appendList(message, name, value, removed)
				continue
			}
		}
		message = append(append(message, line...), "\r\n"...)
	}
	if e.client.Name != "" {
		message = append(append(message, e.client.Name...), ": "...)
		for _, before := range has.client {
			message = append(append(message, before...), ", "...)
		}
		message = append(append(message, e.client.Value...), "\r\n"...)
	}
	return append(message, "\r\n"...), upgrades
}

// lists reports whether a list has an element, in lower case.
func lists(value []byte, element string) bool {
	for candidate := range bytes.SplitSeq(value, []byte(",")) {
		if equalFold(trim(candidate), element) {
			return true
		}
	}
	return false
}

// without returns the elements of a list that are not dropped, and not empty.
func without(value []byte, drop func([]byte) bool) [][]byte {
	var kept [][]byte
	for element := range bytes.SplitSeq(value, []byte(",")) {
		if element = trim(element); len(element) > 0 && !drop(element) {
			kept = append(kept, element)
		}
	}
	return kept
}

// appendList appends a field whose value is a list, without some of its elements,
// or nothing when none is left.
func appendList(message, name, value []byte, drop func([]byte) bool) []byte {
	kept := without(value, drop)
	if len(kept) == 0 {
		return message
	}
	message = append(append(message, name...), ": "...)
	return append(append(message, bytes.Join(kept, []byte(", "))...), "\r\n"...)
}
