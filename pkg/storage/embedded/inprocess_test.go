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

package embedded

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestInProcessStorageReadsWritesAndWatches(t *testing.T) {
	server := start(t, t.TempDir())
	defer stop(t, server)
	inProcess, destroy := inProcessStorage(t, server)
	defer destroy()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	watching, err := inProcess.Watch(ctx, "/configmaps/default/one", storage.ListOptions{
		Predicate: storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: configMapAttributes},
	})
	if err != nil {
		t.Fatalf("watching: %v", err)
	}
	defer watching.Stop()
	written := &corev1.ConfigMap{}
	if err := inProcess.Create(ctx, "/configmaps/default/one", configMap("value"), written, 0); err != nil {
		t.Fatalf("creating: %v", err)
	}
	select {
	case event := <-watching.ResultChan():
		if seen, err := meta.Accessor(event.Object); err != nil || event.Type != watch.Added || seen.GetResourceVersion() != written.ResourceVersion {
			t.Errorf("the watch saw %v (%v), want the version %s added", event, err, written.ResourceVersion)
		}
	case <-ctx.Done():
		t.Error("the watch saw nothing")
	}
	if err := inProcess.Create(ctx, "/configmaps/default/one", configMap("other"), &corev1.ConfigMap{}, 0); !storage.IsExist(err) {
		t.Errorf("creating it again ended with %v, want that it exists", err)
	}
	read := &corev1.ConfigMap{}
	if err := inProcess.Get(ctx, "/configmaps/default/one", storage.GetOptions{}, read); err != nil || read.Data["key"] != "value" {
		t.Errorf("read %v (%v), want the value of the first write", read.Data, err)
	}
	if err := inProcess.Create(ctx, "/configmaps/default/large", configMap(strings.Repeat("x", 2<<20)), &corev1.ConfigMap{}, 0); err == nil {
		t.Error("an object of 2 MiB was accepted")
	}
	if err := inProcess.Get(ctx, "/configmaps/default/large", storage.GetOptions{}, read); !storage.IsNotFound(err) {
		t.Errorf("reading what was rejected ended with %v, want that it does not exist", err)
	}
}

// What was stored by the socket is found without it, and the reverse.
func TestInProcessStorageIsTheSameStore(t *testing.T) {
	server := start(t, t.TempDir())
	defer stop(t, server)
	inProcess, destroy := inProcessStorage(t, server)
	defer destroy()
	if err := inProcess.Create(t.Context(), "/configmaps/default/one", configMap("value"), &corev1.ConfigMap{}, 0); err != nil {
		t.Fatalf("creating: %v", err)
	}
	if value := get(t, server, "/test/configmaps/default/one"); !strings.Contains(value, "value") {
		t.Errorf("by the socket the store has %q", value)
	}
}

func TestNothingRunsAfterTheEndOfAnInProcessStorage(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	server := start(t, t.TempDir())
	_, destroy := inProcessStorage(t, server)
	destroy()
	// A storage that several subresources share is destroyed by each.
	destroy()
	stop(t, server)
	goleak.VerifyNone(t, ignore)
}

func TestWatchOfAnInProcessStorageEndsWithIt(t *testing.T) {
	server := start(t, t.TempDir())
	defer stop(t, server)
	inProcess, destroy := inProcessStorage(t, server)
	defer destroy()
	watching, err := inProcess.Watch(t.Context(), "/configmaps", storage.ListOptions{
		Recursive: true,
		Predicate: storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: configMapAttributes},
	})
	if err != nil {
		t.Fatalf("watching: %v", err)
	}
	defer watching.Stop()
	destroy()
	select {
	case event, open := <-watching.ResultChan():
		if open {
			t.Errorf("the watch saw %v", event)
		}
	case <-time.After(30 * time.Second):
		t.Error("the watch does not end")
	}
}

func configMap(value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", UID: "uid-of-one"},
		Data:       map[string]string{"key": value},
	}
}

func configMapAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	configMap := obj.(*corev1.ConfigMap)
	return configMap.Labels, fields.Set{"metadata.name": configMap.Name}, nil
}

func configMapCodec() runtime.Codec {
	version := corev1.SchemeGroupVersion
	return scheme.Codecs.CodecForVersions(scheme.Codecs.LegacyCodec(version), scheme.Codecs.UniversalDeserializer(), version, version)
}

// inProcessStorage returns a storage of ConfigMaps that is ready.
func inProcessStorage(t *testing.T, server *Server) (storage.Interface, func()) {
	t.Helper()
	config := storagebackend.NewDefaultConfig("/test", configMapCodec())
	config.Transport.ServerList = []string{server.Endpoint()}
	resource := corev1.Resource("configmaps")
	getter := generic.RESTOptions{StorageConfig: config.ForResource(resource), Decorator: generic.UndecoratedStorage}
	options, err := server.InProcess(getter).GetRESTOptions(resource, &corev1.ConfigMap{})
	if err != nil {
		t.Fatalf("getting the options: %v", err)
	}
	key := func(obj runtime.Object) (string, error) {
		configMap := obj.(*corev1.ConfigMap)
		return "/configmaps/" + configMap.Namespace + "/" + configMap.Name, nil
	}
	inProcess, destroy, err := options.Decorator(options.StorageConfig, "/configmaps", key,
		func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} },
		configMapAttributes, nil, nil)
	if err != nil {
		t.Fatalf("making the storage: %v", err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return inProcess.ReadinessCheck() == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting until the storage is ready: %v", err)
	}
	return inProcess, destroy
}
