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

package storage

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/app"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/cluster"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/storecopy"
)

// etcdRoot is what the keys in an etcd begin with.
const etcdRoot = "/registry/elasti.truefoundry.com/"

// copyStorage runs the command.
func copyStorage(ctx context.Context, t *testing.T, arguments ...[]string) (storecopy.Result, error) {
	t.Helper()
	o := options.NewStorageCopy()
	flags := pflag.NewFlagSet("copy", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(slices.Concat(arguments...)); err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return app.CopyStorage(ctx, o)
}

func mustCopy(t *testing.T, arguments ...[]string) string {
	t.Helper()
	result, err := copyStorage(t.Context(), t, arguments...)
	if err != nil {
		t.Fatalf("copying with %v: %v", arguments, err)
	}
	return result.Identity
}

// inHost returns the flags of a side for the host cluster, with the identity of the server.
func inHost(t *testing.T) func(side string) []string {
	t.Helper()
	const only = "host"
	config := asServer()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{only: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{only: {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
			Impersonate: config.Impersonate.UserName, ImpersonateGroups: config.Impersonate.Groups,
		}},
		Contexts:       map[string]*clientcmdapi.Context{only: {Cluster: only, AuthInfo: only}},
		CurrentContext: only,
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client := dynamicClient(t, config)
		for _, resource := range []string{"storedelastiservices", "storedproxyportclaims"} {
			err := client.Resource(cluster.GroupVersion.WithResource(resource)).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
			if err != nil {
				t.Errorf("deleting the %s: %v", resource, err)
			}
		}
	})
	return func(side string) []string {
		return []string{"--" + side + "=cluster", "--" + side + "-kubeconfig=" + file}
	}
}

// hostContent returns what the host cluster stores, by the keys that it would have in an
// etcd.
func hostContent(t *testing.T) map[string]string {
	t.Helper()
	content := map[string]string{}
	for resource, prefix := range map[string]string{"storedelastiservices": "elastiservices/", "storedproxyportclaims": "proxyportclaims/"} {
		stored, err := dynamicClient(t, host.Admin).Resource(cluster.GroupVersion.WithResource(resource)).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range stored.Items {
			fields := map[string]string{}
			for _, name := range []string{"key", "data", "identity"} {
				value, _, err := unstructured.NestedString(stored.Items[i].Object, name)
				if err != nil {
					t.Fatal(err)
				}
				fields[name] = value
			}
			switch stored.Items[i].GetName() {
			case "progress":
			case "identity":
				content["store-identity"] = fields["identity"]
			default:
				content[etcdRoot+"elasti.truefoundry.com/"+prefix+fields["key"]] = fields["data"]
			}
		}
	}
	return content
}

// withEmbedded calls use with a client of the embedded store of a folder.
func withEmbedded(t *testing.T, dataDir string, use func(client *clientv3.Client)) {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{DataDir: dataDir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	withEtcd(t, server.Endpoint(), use)
}

func withEtcd(t *testing.T, endpoint string, use func(client *clientv3.Client)) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	use(client)
}

// readContent returns what an etcd stores.
func readContent(t *testing.T, client *clientv3.Client) map[string]string {
	t.Helper()
	found, err := client.Get(t.Context(), etcdRoot, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, pair := range found.Kvs {
		key := string(pair.Key)
		if key == etcdRoot+"store-identity" {
			key = "store-identity"
		}
		content[key] = string(pair.Value)
	}
	return content
}

func embeddedContent(t *testing.T, dataDir string) (content map[string]string) {
	t.Helper()
	withEmbedded(t, dataDir, func(client *clientv3.Client) { content = readContent(t, client) })
	return content
}

// newEmbedded fills an embedded store, as a server does, and returns its folder.
func newEmbedded(t *testing.T, services int) (dataDir string) {
	t.Helper()
	dataDir = t.TempDir()
	codec := apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion)
	withEmbedded(t, dataDir, func(client *clientv3.Client) {
		put := func(key string, object runtime.Object) {
			// A server stores what it has read with its defaults.
			encoded, err := runtime.Encode(codec, object)
			if err == nil {
				object, err = runtime.Decode(codec, encoded)
			}
			if err == nil {
				encoded, err = runtime.Encode(codec, object)
			}
			if err == nil {
				_, err = client.Put(t.Context(), etcdRoot+"elasti.truefoundry.com/"+key, string(encoded))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		now := metav1.Now().Rfc3339Copy()
		for i := range services {
			name := fmt.Sprintf("app-%d", i)
			if i == 0 {
				// Its name in the host cluster is a hash.
				name = strings.Repeat("a", 253)
			}
			put("elastiservices/shop/"+name, &elasti.ElastiService{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Generation: 7, CreationTimestamp: now, DeletionTimestamp: &now,
					Finalizers:    []string{"example.com/kept"},
					ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "elasti.truefoundry.com/v1alpha1", Time: &now}},
				},
				Spec:   elasti.ElastiServiceSpec{Service: name},
				Status: elasti.ElastiServiceStatus{Mode: elasti.ModeProxy, ObservedGeneration: 6},
			})
			port := int32(10000 + i)
			put(fmt.Sprintf("proxyportclaims/%d", port), &elasti.ProxyPortClaim{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(port), UID: types.UID("claim-" + name), CreationTimestamp: now},
				Spec:       elasti.ProxyPortClaimSpec{ProxyPort: port, Port: 80, Owner: elasti.ProxyPortOwner{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}},
			})
		}
	})
	return dataDir
}

// expectContent compares what a store has with what it should have.
func expectContent(t *testing.T, where string, content, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if content[key] != value {
			t.Errorf("%s has %q at %s, want %q", where, content[key], key, value)
		}
	}
	for key, value := range content {
		if _, wanted := want[key]; !wanted {
			t.Errorf("%s has %q at %s, want nothing", where, value, key)
		}
	}
}

func inEmbedded(side, dataDir string) []string {
	return []string{"--" + side + "=embedded", "--" + side + "-data-dir=" + dataDir}
}

// Each byte that a server has stored is in the copy, whatever the way there.
func TestStorageIsCopiedBetweenAllBackends(t *testing.T) {
	const services = 30
	inCluster := inHost(t)
	directory := t.TempDir()
	etcd := host.NewEtcd(directory)
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	inEtcd := func(side string) []string {
		return []string{"--" + side + "=etcd", "--" + side + "-etcd-servers=" + etcd.Endpoint}
	}
	first, last := newEmbedded(t, services), t.TempDir()
	identity := mustCopy(t, inEmbedded("from", first), inCluster("to"))
	want := embeddedContent(t, first)
	if len(want) != 2*services+1 || want["store-identity"] != identity {
		t.Fatalf("the source has %d keys and the identity %q, want %d and %q", len(want), want["store-identity"], 2*services+1, identity)
	}
	expect := func(where string, content map[string]string) {
		t.Helper()
		expectContent(t, where, content, want)
	}
	expect("the host cluster", hostContent(t))
	mustCopy(t, inCluster("from"), inEtcd("to"))
	withEtcd(t, etcd.Endpoint, func(client *clientv3.Client) { expect("the etcd", readContent(t, client)) })
	mustCopy(t, inEtcd("from"), inEmbedded("to", last))
	expect("the embedded store", embeddedContent(t, last))

	// The host cluster has another store by now.
	other := newEmbedded(t, 3)
	if _, err := copyStorage(t.Context(), t, inEmbedded("from", other), inCluster("to")); err == nil || !strings.Contains(err.Error(), "another store already") {
		t.Errorf("copying to another store returned %v", err)
	}
	expect("the host cluster", hostContent(t))
	mustCopy(t, inEmbedded("from", other), inCluster("to"), []string{"--overwrite"})
	want = embeddedContent(t, other)
	expect("the host cluster", hostContent(t))
	mustCopy(t, inEtcd("from"), inCluster("to"), []string{"--overwrite"})
	mustCopy(t, inCluster("from"), inEmbedded("to", other), []string{"--overwrite"})
	want = embeddedContent(t, last)
	expect("the embedded store", embeddedContent(t, other))
}

// A copy does not lack what its source cannot be read of.
func TestDamagedObjectsAreNotLeftOutOfACopy(t *testing.T) {
	inCluster := inHost(t)
	mustCopy(t, inEmbedded("from", newEmbedded(t, 3)), inCluster("to"))
	stored := dynamicClient(t, asServer()).Resource(cluster.GroupVersion.WithResource("storedelastiservices"))
	if _, err := stored.Patch(t.Context(), "n.shop.app-1", types.MergePatchType, []byte(`{"data":"{}"}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := copyStorage(t.Context(), t, inCluster("from"), inEmbedded("to", t.TempDir()))
	if err == nil || !strings.Contains(err.Error(), "storedelastiservices/n.shop.app-1") {
		t.Errorf("copying a store with a damaged object returned %v", err)
	}
}

// What is to be replaced may be damaged, whether the source has it or not.
func TestDamagedObjectsAreOverwritten(t *testing.T) {
	inCluster := inHost(t)
	first := newEmbedded(t, 3)
	mustCopy(t, inEmbedded("from", newEmbedded(t, 4)), inCluster("to"))
	client := dynamicClient(t, asServer())
	for name, resource := range map[string]string{
		"n.shop.app-1": "storedelastiservices", "n.shop.app-3": "storedelastiservices", "c.10002": "storedproxyportclaims",
	} {
		_, err := client.Resource(cluster.GroupVersion.WithResource(resource)).Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":"{}"}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := copyStorage(t.Context(), t, inEmbedded("from", first), inCluster("to")); err == nil {
		t.Error("a store with damaged objects was replaced without --overwrite")
	}
	mustCopy(t, inEmbedded("from", first), inCluster("to"), []string{"--overwrite"})
	expectContent(t, "the host cluster", hostContent(t), embeddedContent(t, first))
}

// The command is interrupted while it writes to the host cluster, and is repeated.
func TestInterruptedCopyToTheHostClusterIsContinued(t *testing.T) {
	const services = 60
	inCluster := inHost(t)
	first := newEmbedded(t, services)
	ctx, interrupt := context.WithCancel(t.Context())
	watching, err := dynamicClient(t, host.Admin).Resource(cluster.GroupVersion.WithResource("storedelastiservices")).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	go func() {
		// The identity is written first.
		for range 5 {
			<-watching.ResultChan()
		}
		interrupt()
	}()
	if _, err := copyStorage(ctx, t, inEmbedded("from", first), inCluster("to")); err == nil {
		t.Fatal("the copy was not interrupted")
	}
	if identity := hostContent(t)["store-identity"]; !strings.HasPrefix(identity, "incomplete-copy-of-") {
		t.Errorf("the interrupted copy has the identity %q", identity)
	}
	mustCopy(t, inEmbedded("from", first), inCluster("to"))
	expectContent(t, "the host cluster", hostContent(t), embeddedContent(t, first))
}
