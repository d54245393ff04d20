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
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMessagesAreOneLineOfPrintableText(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"as it is":           {`pods "a" is forbidden: exceeded quota`, `pods "a" is forbidden: exceeded quota`},
		"lines":              {"first\r\n\n second\t", "first second"},
		"terminal sequences": {"red \x1b[31m text\x07", "red [31m text"},
		"not UTF-8":          {"a\xff\xfeb", "a b"},
		"reversed text":      {"a\u202eb\u2066c", "a b c"},
		"other scripts":      {"образ не найден", "образ не найден"},
		"nothing":            {"\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := clean(test.text); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestMessagesAreBounded(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 1<<20), strings.Repeat("日本", 1<<10), strings.Repeat("\x00x", 1<<20)} {
		got := clean(text)
		if len(got) > maxMessage || len(got) < maxMessage-8 || !strings.HasSuffix(got, ellipsis) || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
	if exact := strings.Repeat("x", maxMessage-len(ellipsis)); clean(exact) != exact {
		t.Error("a message was cut that is not too long")
	}
}
