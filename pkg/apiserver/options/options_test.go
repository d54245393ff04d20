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
	"time"

	"github.com/spf13/pflag"
)

// complete parses a command line as main does.
func complete(t *testing.T, arguments ...string) (*Options, error) {
	t.Helper()
	o := New()
	flags := pflag.NewFlagSet("elasti-apiserver", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	for _, section := range o.Flags().FlagSets {
		flags.AddFlagSet(section)
	}
	if err := flags.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	if err := o.Complete(); err != nil {
		t.Fatal(err)
	}
	return o, o.Validate()
}

func TestValidCommandLines(t *testing.T) {
	for _, line := range []string{
		"--storage=embedded --data-dir=/data",
		"--storage=cluster",
		"--etcd-servers=http://127.0.0.1:2379",
		"--storage=etcd --etcd-servers=http://127.0.0.1:2379",
		"--storage=embedded --data-dir=/data --tls-cert-file=a --tls-private-key-file=b",
		"--storage=embedded --data-dir=/data --proxy-port-range=20000-20999",
		"--storage=embedded --data-dir=/data --polling-interval=5s --convergence-time=10m --dry-run --prometheus-server-address=https://prometheus/path --prometheus-authorization-header-file=/token",
		"--storage=embedded --data-dir=/data --prometheus-server-address=https://prometheus --prometheus-authorization-header-file=/token --prometheus-namespace-label=namespace --prometheus-authorization-namespaces=*",
		"--storage=embedded --data-dir=/data --prometheus-server-address=https://prometheus --prometheus-namespace-label=namespace --trigger-allowed-servers=",
		"--storage=embedded --data-dir=/data --trigger-allowed-servers=prometheus.monitoring:9090,*.example.com --trigger-allowed-servers=10.0.0.0/8:9090,[fd00::/8]:9090",
	} {
		if _, err := complete(t, strings.Fields(line)...); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// outsideOfClusters is where the process has no cluster around it, as a pod has.
func outsideOfClusters(t *testing.T) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
}

func TestStorageDefaultsToTheClusterThatTheServerRunsIn(t *testing.T) {
	for _, test := range []struct {
		name, line string
		inPod      bool
		want       StorageBackend
	}{
		{"in a pod", "", true, StorageCluster},
		{"in a pod, for another cluster", "--kubeconfig=/k --data-dir=/data", true, StorageEmbedded},
		{"in a pod, with an etcd", "--etcd-servers=http://127.0.0.1:2379", true, StorageEtcd},
		{"in a pod, chosen", "--storage=embedded --data-dir=/data", true, StorageEmbedded},
		{"elsewhere", "--kubeconfig=/k --data-dir=/data", false, StorageEmbedded},
		{"elsewhere, chosen", "--kubeconfig=/k --storage=cluster", false, StorageCluster},
	} {
		t.Run(test.name, func(t *testing.T) {
			outsideOfClusters(t)
			if test.inPod {
				t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
				t.Setenv("KUBERNETES_SERVICE_PORT", "443")
			}
			o, err := complete(t, strings.Fields(test.line)...)
			if err != nil || o.Storage.Backend != test.want {
				t.Errorf("the storage is %q (error: %v), want %q", o.Storage.Backend, err, test.want)
			}
		})
	}
}

// A data directory alone does not choose where a pod stores.
func TestDataDirectoryInAPodNeedsItsStorage(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if _, err := complete(t, "--data-dir=/data"); err == nil || !strings.Contains(err.Error(), "--data-dir is for --storage=embedded only") {
		t.Errorf("got %v", err)
	}
}

func TestInvalidCommandLinesNameTheFlag(t *testing.T) {
	outsideOfClusters(t)
	for line, want := range map[string]string{
		"":                                   "--storage=embedded needs --data-dir; it is the default outside of a cluster",
		"--storage=embedded":                 "--storage=embedded needs --data-dir",
		"--storage=etcd":                     "--storage=etcd needs --etcd-servers",
		"--storage=tape":                     `--storage is "tape"`,
		"--storage=cluster --data-dir=/data": "--data-dir is for --storage=embedded",
		"--storage=cluster --etcd-servers=http://127.0.0.1:2379":                                                           "--etcd-servers is for --storage=etcd",
		"--storage=cluster --encryption-provider-config=/keys.yaml":                                                        "--encryption-provider-config is not for --storage=cluster",
		"--storage=embedded --data-dir=/data --etcd-servers=http://127.0.0.1:2379":                                         "--etcd-servers is for --storage=etcd",
		"--storage=etcd --etcd-servers=http://127.0.0.1:2379 --data-dir=/data":                                             "--data-dir is for --storage=embedded",
		"--storage=embedded --data-dir=/data --serving-certificate=files":                                                  "needs --tls-cert-file",
		"--storage=embedded --data-dir=/data --serving-certificate=magic":                                                  `--serving-certificate is "magic"`,
		"--storage=embedded --data-dir=/data --proxy-port-range=80-90":                                                     "--proxy-port-range is 80-90",
		"--storage=embedded --data-dir=/data --shared-http-port=10005":                                                     "--shared-http-port is 10005",
		"--storage=embedded --data-dir=/data --convergence-time=500ms":                                                     "--convergence-time is 500ms, but must be from 1s to 10m0s",
		"--storage=embedded --data-dir=/data --convergence-time=11m":                                                       "--convergence-time is 11m0s, but must be from 1s to 10m0s",
		"--storage=embedded --data-dir=/data --polling-interval=10ms":                                                      "--polling-interval is 10ms, but must be from 1s to 1h0m0s",
		"--storage=embedded --data-dir=/data --prometheus-server-address=prometheus:9090":                                  "--prometheus-server-address must be a URL",
		"--storage=embedded --data-dir=/data --prometheus-authorization-header-file=/token":                                "give that too",
		"--storage=embedded --data-dir=/data --trigger-allowed-servers=http://prometheus":                                  `--trigger-allowed-servers: "http://prometheus"`,
		"--storage=embedded --data-dir=/data --prometheus-namespace-label=namespace":                                       "are for --prometheus-server-address",
		"--storage=embedded --data-dir=/data --prometheus-authorization-namespaces=shop":                                   "are for --prometheus-server-address",
		"--storage=embedded --data-dir=/data --prometheus-server-address=http://p --prometheus-namespace-label=namespace":  "give --trigger-allowed-servers too",
		"--storage=embedded --data-dir=/data --prometheus-server-address=http://p --prometheus-namespace-label=a-b":        `--prometheus-namespace-label is "a-b"`,
		"--storage=embedded --data-dir=/data --prometheus-server-address=http://p --prometheus-namespace-label=__name__":   `--prometheus-namespace-label is "__name__"`,
		"--storage=embedded --data-dir=/data --prometheus-server-address=http://p --prometheus-authorization-namespaces=A": `--prometheus-authorization-namespaces has "A"`,
		"--storage=embedded --data-dir=/d --serving-certificate=self-managed --tls-cert-file=a --tls-private-key-file=b":   "exclude each other",
	} {
		if _, err := complete(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", line, err, want)
		}
	}
}

func TestOneKubeconfigServesForAll(t *testing.T) {
	o, err := complete(t, "--storage=embedded", "--data-dir=/data", "--kubeconfig=/k")
	if err != nil {
		t.Fatal(err)
	}
	if o.Recommended.Authentication.RemoteKubeConfigFile != "/k" || o.Recommended.Authorization.RemoteKubeConfigFile != "/k" {
		t.Error("--kubeconfig is not used for authentication and authorization")
	}
}

// Cached permissions decide about callers that connect directly, and about those
// whose trigger refers to a Secret.
func TestRevokedPermissionsAreNotCachedForLong(t *testing.T) {
	o, err := complete(t, "--storage=embedded", "--data-dir=/data")
	if err != nil {
		t.Fatal(err)
	}
	if allowed, denied := o.Recommended.Authorization.AllowCacheTTL, o.Recommended.Authorization.DenyCacheTTL; allowed > 10*time.Second || denied > 10*time.Second {
		t.Errorf("permissions are cached for %s, denials for %s; want 10s at most", allowed, denied)
	}
}
