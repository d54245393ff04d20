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
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func validateCopy(t *testing.T, line string) error {
	t.Helper()
	o := NewStorageCopy()
	flags := pflag.NewFlagSet("copy", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.AddFlags(flags)
	if err := flags.Parse(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return o.Validate()
}

func TestValidCopies(t *testing.T) {
	for _, line := range []string{
		"--from=embedded --from-data-dir=/data --to=cluster",
		"--from=cluster --from-kubeconfig=/k --to=embedded --to-data-dir=/data --to-encryption-provider-config=/keys.yaml",
		"--from=etcd --from-etcd-servers=http://127.0.0.1:2379 --from-etcd-prefix=/a --to=etcd --to-etcd-servers=http://127.0.0.1:2379 --to-etcd-prefix=/b --overwrite",
		"--from=embedded --from-data-dir=/data --to=cluster --once",
	} {
		if err := validateCopy(t, line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestInvalidCopiesNameTheFlag(t *testing.T) {
	for line, want := range map[string]string{
		"--to=cluster":                                    `--from is ""`,
		"--from=cluster":                                  `--to is ""`,
		"--from=tape --to=cluster":                        `--from is "tape"`,
		"--from=embedded --to=cluster":                    "--from=embedded needs --from-data-dir",
		"--from=cluster --to=etcd":                        "--to=etcd needs --to-etcd-servers",
		"--from=cluster --to=cluster --to-data-dir=/data": "--to-data-dir is for --to=embedded",
		"--from=embedded --from-data-dir=/data --to=cluster --once --overwrite":                       "--once cannot be given with --overwrite",
		"--from=cluster --from-etcd-servers=http://127.0.0.1:2379 --to=cluster":                       "--from-etcd-servers is for --from=etcd",
		"--from=cluster --to=embedded --to-data-dir=/data --to-kubeconfig=/k":                         "--to-kubeconfig is for --to=cluster",
		"--from=cluster --from-encryption-provider-config=/keys.yaml --to=cluster --to-kubeconfig=/k": "--from-encryption-provider-config is not for --from=cluster",
	} {
		if err := validateCopy(t, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", line, err, want)
		}
	}
}
