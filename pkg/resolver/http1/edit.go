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
)

// The names of fields that are edited, in lower case.
const (
	fieldConnection    = "connection"
	fieldUpgrade       = "upgrade"
	fieldHTTP2Settings = "http2-settings"
)

// headEdit is what is changed in the head of a request. The zero value is nothing.
type headEdit struct {
	// withoutH2C takes out the wish to go on in HTTP/2: what comes after that is
	// not seen by anything between the client and the pod, and only a Service port
	// whose appProtocol says so expects it.
	withoutH2C bool
}

// edit returns what is changed in the head of the current request.
func (c *conn) edit() headEdit {
	return headEdit{withoutH2C: c.request.h2c && !speaksH2C(c.port.AppProtocol)}
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

// appendHead appends the head of a valid request with the changes, and returns
// whether it still asks for another protocol.
func (e headEdit) appendHead(message, head []byte) (_ []byte, upgrades bool) {
	line, rest, _ := nextLine(head)
	message = append(append(message, line...), "\r\n"...)
	fields := rest
	asks := false
	for {
		if line, rest, _ = nextLine(rest); len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if equalFold(name, fieldUpgrade) && len(without(value, isH2C)) > 0 {
			asks = true
		}
	}
	// An option that names what is taken out goes with it.
	gone := func(option []byte) bool {
		return equalFold(trim(option), fieldHTTP2Settings) || !asks && equalFold(trim(option), fieldUpgrade)
	}
	for rest = fields; ; {
		if line, rest, _ = nextLine(rest); len(line) == 0 {
			return append(message, "\r\n"...), upgrades && asks
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case equalFold(name, fieldHTTP2Settings):
		case equalFold(name, fieldUpgrade):
			message = appendList(message, name, value, isH2C)
		case equalFold(name, fieldConnection):
			upgrades = upgrades || asks && lists(value, fieldUpgrade)
			message = appendList(message, name, value, gone)
		default:
			message = append(append(message, line...), "\r\n"...)
		}
	}
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
