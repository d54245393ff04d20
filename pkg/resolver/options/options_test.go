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

package options

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestDefaultsAreValid(t *testing.T) {
	if err := New().Validate(); err != nil {
		t.Error(err)
	}
}

// Each invalid value is rejected with an error that names its flag.
func TestValidate(t *testing.T) {
	for _, argument := range []string{
		"--bind-address=localhost", "--max-held-bytes=1", "--max-header-bytes=1", "--header-timeout=0s",
		"--idle-timeout=-1s", "--sniff-timeout=0s", "--shutdown-timeout=0s", "--shutdown-delay=-1s",
		"--http2-move-delay=-1s", "--body-timeout=-1s", "--greeting-timeout=-1s", "--max-held-bytes-per-service=-1",
		"--max-connections=-1", "--max-connections-per-service=-1", "--max-connections-per-client=-1", "--port-linger=-1s", "--shared-http-port=65536", "--tracing-sampling-rate-per-million=-1",
	} {
		o := New()
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse([]string{argument}); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(argument, "=")
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name+":") {
			t.Errorf("%s: %v", argument, err)
		}
	}
}
