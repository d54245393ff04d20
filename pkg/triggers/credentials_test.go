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

package triggers

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestParseCredentials(t *testing.T) {
	for name, test := range map[string]struct {
		members string
		// wrong are the fields that are complained about.
		wrong []string
	}{
		"none":                  {``, nil},
		"bearer":                {`,"authorization":{"credentials":{"name":"a","key":"b"}}`, nil},
		"null":                  {`,"authorization":null,"tlsConfig":null`, nil},
		"scheme":                {`,"authorization":{"type":"Two words","credentials":{"name":"a","key":"b"}}`, []string{"m.authorization.type"}},
		"nothing to send":       {`,"authorization":{}`, []string{"m.authorization.credentials"}},
		"bad name":              {`,"authorization":{"credentials":{"name":"A","key":"b"}}`, []string{"m.authorization.credentials.name"}},
		"bad key":               {`,"authorization":{"credentials":{"name":"a","key":"b/c"}}`, []string{"m.authorization.credentials.key"}},
		"misspelled":            {`,"authorization":{"credential":{"name":"a","key":"b"}}`, []string{"m.authorization"}},
		"a value, no reference": {`,"authorization":"Bearer s3cr3t"`, []string{"m.authorization"}},
		"half of basic":         {`,"basicAuth":{"username":{"name":"a","key":"b"}}`, []string{"m.basicAuth.password"}},
		"two at once": {`,"authorization":{"credentials":{"name":"a","key":"b"}},"basicAuth":{"username":{"name":"a","key":"b"},"password":{"name":"a","key":"b"}}`,
			[]string{"m.basicAuth"}},
		"with the header":     {`,"headers":{"authorization":"x"},"authorization":{"credentials":{"name":"a","key":"b"}}`, []string{"m.headers[authorization]"}},
		"tls":                 {`,"serverAddress":"https://a","tlsConfig":{"ca":{"configMap":{"name":"a","key":"b"}}}`, nil},
		"tls without https":   {`,"serverAddress":"http://a","tlsConfig":{"serverName":"a"}`, []string{"m.tlsConfig"}},
		"certificate, no key": {`,"tlsConfig":{"cert":{"secret":{"name":"a","key":"b"}}}`, []string{"m.tlsConfig"}},
		"two authorities":     {`,"tlsConfig":{"ca":{"secret":{"name":"a","key":"b"},"configMap":{"name":"a","key":"b"}}}`, []string{"m.tlsConfig.ca"}},
		"verifies always":     {`,"tlsConfig":{"insecureSkipVerify":true}`, []string{"m.tlsConfig"}},
	} {
		t.Run(name, func(t *testing.T) {
			metadata := &runtime.RawExtension{Raw: []byte(`{"query":"q","threshold":1` + test.members + `}`)}
			_, errs := ParsePrometheus(metadata, field.NewPath("m"))
			var wrong []string
			for _, err := range errs {
				wrong = append(wrong, err.Field)
			}
			if !slices.Equal(wrong, test.wrong) {
				t.Errorf("complaints about %v, want %v: %v", wrong, test.wrong, errs.ToAggregate())
			}
			if unknown := UnknownKeys(TypePrometheus, metadata); len(unknown) > 0 {
				t.Errorf("unknown keys %v", unknown)
			}
		})
	}
}

func TestReferencesOfCredentials(t *testing.T) {
	parsed, errs := ParsePrometheus(&runtime.RawExtension{Raw: []byte(`{"query":"q","threshold":1,"authorization":{"credentials":{"name":"a","key":"b"}},` +
		`"tlsConfig":{"ca":{"configMap":{"name":"c","key":"d"}}}}`)}, nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	want := []KeyReference{{KindSecret, "a", "b"}, {KindConfigMap, "c", "d"}}
	if got := parsed.Credentials.References(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
