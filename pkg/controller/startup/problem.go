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

package startup

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Problem is what keeps a target from starting.
type Problem struct {
	// Reason is one of v1alpha1.TargetProblems.
	Reason string
	// Message is what the cluster reports, as clean returns it.
	Message string
}

func newProblem(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: clean(fmt.Sprintf(format, args...))}
}

// equal reports whether two problems, which may be nil, are the same.
func equal(a, b *Problem) bool { return a == b || a != nil && b != nil && *a == *b }

// maxMessage is the length of the longest message in bytes. Messages are part of
// the status of an ElastiService, of Events, whose limit is 1024 bytes, and of
// responses to clients.
const maxMessage = 512

// ellipsis ends a message that was cut.
const ellipsis = "…"

// clean returns a text, which others wrote, as one line of valid UTF-8 that is at
// most maxMessage bytes long and has printable characters only. Everything else
// becomes a space.
func clean(text string) string {
	var cleaned strings.Builder
	space := false
	for _, character := range text {
		if !unicode.IsPrint(character) || character == utf8.RuneError || character == ' ' {
			space = true
			continue
		}
		length := utf8.RuneLen(character)
		if space && cleaned.Len() > 0 {
			length++
		}
		if cleaned.Len()+length > maxMessage-len(ellipsis) {
			return cleaned.String() + ellipsis
		}
		if space && cleaned.Len() > 0 {
			cleaned.WriteByte(' ')
		}
		space = false
		cleaned.WriteRune(character)
	}
	return cleaned.String()
}
