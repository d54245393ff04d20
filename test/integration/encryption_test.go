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

package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// noteAnnotation is the annotation with a text of a user.
const noteAnnotation = "example.com/note"

// writeEncryption writes an EncryptionConfiguration for resources, and returns the flag that
// names it. The first of the keys encrypts. What is not encrypted can be read.
func writeEncryption(t *testing.T, resources string, keys ...string) (flag string) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n  - resources: [%q]\n    providers:\n      - secretbox:\n          keys:\n", resources)
	for _, name := range keys {
		// The length of a key is 32 bytes.
		secret := base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", name)))
		text += fmt.Sprintf("            - {name: %s, secret: %s}\n", name, secret)
	}
	text += "      - identity: {}\n"
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--encryption-provider-config=" + file
}

// storedBytes returns what an etcd has, by key.
func storedBytes(t *testing.T, endpoint string) map[string][]byte {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: waitTimeout, Context: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	response, err := client.Get(t.Context(), "/", clientv3.WithPrefix())
	if err != nil {
		t.Fatalf("reading from etcd: %v", err)
	}
	stored := map[string][]byte{}
	for _, pair := range response.Kvs {
		stored[string(pair.Key)] = pair.Value
	}
	return stored
}

// expectEncrypted expects that all that an etcd has at keys with a part is encrypted with a
// key, and that there is as much as wanted.
func expectEncrypted(t *testing.T, endpoint, part, key string, count int) {
	t.Helper()
	found := 0
	for at, stored := range storedBytes(t, endpoint) {
		if !strings.Contains(at, part) {
			continue
		}
		found++
		if want := "k8s:enc:secretbox:v1:" + key + ":"; !bytes.HasPrefix(stored, []byte(want)) {
			t.Errorf("etcd has %.60q at %s, want something that begins with %s", stored, at, want)
		}
	}
	if found != count {
		t.Errorf("etcd has %d objects at keys with %s, want %d", found, part, count)
	}
}

// isInFiles reports whether a text is in one of the files below a folder.
func isInFiles(t *testing.T, folder, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, []byte(text))
		// A file of the log may have been replaced meanwhile.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatalf("reading what is in %s: %v", folder, err)
	}
	return found
}

// newNote returns an ElastiService with a text, for a Service of its name.
func newNote(name, text string) *v1alpha1.ElastiService {
	object := newElastiService(name)
	object.Spec.Service = name
	object.Annotations = map[string]string{noteAnnotation: text}
	return object
}

// A store that was not encrypted is, from some time on, and the key is replaced later. At
// no time is anything unreadable to the server.
func TestEncryptionAtRestAndItsKeys(t *testing.T) {
	const before, after = "text-before-encryption", "text-since-encryption"
	namespace := newNamespace(t)
	createDeployment(t, namespace, 0)
	directory := t.TempDir()
	etcd := startEtcd(t, directory)
	run := func(flags ...string) *loneServer {
		t.Helper()
		return startLoneServer(t, namespace, append([]string{"--storage=etcd", "--etcd-servers=" + etcd.Endpoint}, flags...)...)
	}
	encrypted := func(keys ...string) string {
		t.Helper()
		return writeEncryption(t, "*.elasti.truefoundry.com", keys...)
	}
	texts := map[string]string{"app": before, "other": after}
	create := func(server *loneServer, name string) {
		t.Helper()
		if _, err := server.elastiServices(t, namespace).Create(t.Context(), newNote(name, texts[name]), metav1.CreateOptions{}); err != nil {
			t.Fatalf("creating %s: %v", name, err)
		}
	}

	server := run()
	create(server, "app")
	if !isInFiles(t, directory, before) {
		t.Fatal("what is stored without encryption is not in the files of etcd: this shows nothing")
	}
	server.stop(t)
	server = run(encrypted("first"))
	create(server, "other")
	expectNotes(t, server, namespace, texts)
	rewriteAll(t, server, namespace)
	expectEncrypted(t, etcd.Endpoint, "/elastiservices/", "first", len(texts))
	if isInFiles(t, directory, after) {
		t.Error("what is stored with encryption is in the files of etcd")
	}
	server.stop(t)
	server = run(encrypted("second", "first"))
	expectNotes(t, server, namespace, texts)
	rewriteAll(t, server, namespace)
	expectEncrypted(t, etcd.Endpoint, "/elastiservices/", "second", len(texts))
	server.stop(t)
	server = run(encrypted("second"))
	expectNotes(t, server, namespace, texts)
	if isInFiles(t, directory, after) {
		t.Error("what is stored with another key is in the files of etcd")
	}
}

// rewriteAll updates the ElastiServices without a change, as kubectl replace does with what
// kubectl get has printed.
func rewriteAll(t *testing.T, server *loneServer, namespace string) {
	t.Helper()
	client := server.elastiServices(t, namespace)
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("listing: %v", err)
	}
	for i := range list.Items {
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			// The controller may write its status.
			current, err := client.Get(t.Context(), list.Items[i].Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			_, err = client.Update(t.Context(), current, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Fatalf("updating %s: %v", list.Items[i].Name, err)
		}
	}
}

// expectNotes expects that a server lists ElastiServices with these texts.
func expectNotes(t *testing.T, server *loneServer, namespace string, texts map[string]string) {
	t.Helper()
	list, err := server.elastiServices(t, namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("listing: %v", err)
	}
	found := map[string]string{}
	for i := range list.Items {
		found[list.Items[i].Name] = list.Items[i].Annotations[noteAnnotation]
	}
	if !maps.Equal(found, texts) {
		t.Errorf("the server has %v, want %v", found, texts)
	}
}

// In the host cluster, what is stored is encrypted as the host cluster is configured.
func TestHostEncryptsWhatIsStoredInIt(t *testing.T) {
	const plain, secret = "text-in-a-configmap", "text-in-an-elastiservice"
	host, err := shared.StartBesideOnClusterStorage(t.Context(), "encrypting", writeEncryption(t, "*.storage.elasti.truefoundry.com", "host"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Data: map[string]string{"text": plain}}
	if _, err := host.Kubernetes.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating a ConfigMap: %v", err)
	}
	client := host.Elasti.ElastiV1alpha1().ElastiServices(metav1.NamespaceDefault)
	created, err := client.Create(t.Context(), newNote("app", secret), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	read, err := client.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil || read.UID != created.UID || read.Annotations[noteAnnotation] != secret {
		t.Errorf("reading returns %+v (%v), want what was created", read, err)
	}
	where := map[string][]string{}
	objects := 0
	for key, stored := range storedBytes(t, host.EtcdEndpoint()) {
		for _, text := range []string{plain, secret} {
			if bytes.Contains(stored, []byte(text)) {
				where[text] = append(where[text], key)
			}
		}
		if strings.Contains(key, "/storedelastiservices/") {
			objects++
		}
	}
	// Besides the object there are the identity of the store, and the progress marker once
	// there was a reader.
	if objects < 2 {
		t.Errorf("etcd has %d objects of the store", objects)
	}
	expectEncrypted(t, host.EtcdEndpoint(), "/storedelastiservices/", "host", objects)
	if len(where[plain]) != 1 || len(where[secret]) > 0 {
		t.Errorf("etcd has readable texts at %v, want that of the ConfigMap only", where)
	}
}
