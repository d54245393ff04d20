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
	"errors"
	"maps"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

const writtenKey = "/configmaps/default/one"

// stored returns what is in the store.
func stored(t *testing.T, from storage.Interface) *corev1.ConfigMap {
	t.Helper()
	read := &corev1.ConfigMap{}
	if err := from.Get(t.Context(), writtenKey, storage.GetOptions{}, read); err != nil {
		t.Fatalf("reading: %v", err)
	}
	return read
}

// set returns an update that gives a ConfigMap a value.
func set(value string) storage.UpdateFunc {
	return func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		updated := input.DeepCopyObject().(*corev1.ConfigMap)
		updated.Data = map[string]string{"key": value}
		return updated, nil, nil
	}
}

func TestWhatAWriteReturnsIsWhatIsStored(t *testing.T) {
	server := start(t, t.TempDir())
	defer stop(t, server)
	inProcess, destroy := inProcessStorage(t, server)
	defer destroy()

	given := configMap("first")
	given.CreationTimestamp = metav1.NewTime(time.Unix(1_700_000_000, 0))
	given.Labels = map[string]string{}
	given.Finalizers = []string{"example.com/one"}
	returned := &corev1.ConfigMap{Data: map[string]string{"of": "another object"}}
	if err := inProcess.Create(t.Context(), writtenKey, given, returned, 0); err != nil {
		t.Fatalf("creating: %v", err)
	}
	compare := func(what string) {
		t.Helper()
		// Only a decoder sets the kind of an object.
		want := stored(t, inProcess)
		want.TypeMeta, returned.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
		if !equality.Semantic.DeepEqual(returned, want) {
			t.Errorf("what %s returned is not what is stored:\n%s", what, diff.Diff(want, returned))
		}
	}
	compare("creating")
	// Neither shares memory with the other.
	given.Data["key"], returned.Finalizers[0] = "changed by the writer", "example.com/changed-by-the-writer"
	if read := stored(t, inProcess); read.Data["key"] != "first" || read.Finalizers[0] != "example.com/one" || returned.Data["key"] != "first" {
		t.Errorf("stored is %v, returned %v after both were changed", read, returned)
	}

	before := stored(t, inProcess)
	returned = &corev1.ConfigMap{}
	if err := inProcess.GuaranteedUpdate(t.Context(), writtenKey, returned, false, nil, set("second"), nil); err != nil {
		t.Fatalf("updating: %v", err)
	}
	compare("updating")
	if returned.ResourceVersion == before.ResourceVersion || returned.Data["key"] != "second" {
		t.Errorf("the update returned %v", returned)
	}

	version := returned.ResourceVersion
	returned = &corev1.ConfigMap{}
	if err := inProcess.GuaranteedUpdate(t.Context(), writtenKey, returned, false, nil, set("second"), nil); err != nil {
		t.Fatalf("updating without a change: %v", err)
	}
	compare("updating without a change")
	if returned.ResourceVersion != version {
		t.Errorf("the version is %s after an update without a change, want %s", returned.ResourceVersion, version)
	}

	if err := inProcess.Create(t.Context(), writtenKey, configMap("again"), nil, 0); !storage.IsExist(err) {
		t.Errorf("creating it again ended with %v, want that it exists", err)
	}
}

// An attempt that failed because of another writer leaves nothing in the result.
func TestARetriedWriteReturnsTheLastAttempt(t *testing.T) {
	server := start(t, t.TempDir())
	defer stop(t, server)
	inProcess, destroy := inProcessStorage(t, server)
	defer destroy()
	if err := inProcess.Create(t.Context(), writtenKey, configMap("0"), &corev1.ConfigMap{}, 0); err != nil {
		t.Fatalf("creating: %v", err)
	}
	attempts := 0
	returned := &corev1.ConfigMap{}
	err := inProcess.GuaranteedUpdate(t.Context(), writtenKey, returned, false, nil, func(input runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
		attempts++
		if attempts == 1 {
			if err := inProcess.GuaranteedUpdate(t.Context(), writtenKey, &corev1.ConfigMap{}, false, nil, set("7"), nil); err != nil {
				t.Errorf("writing in between: %v", err)
			}
		}
		found, err := strconv.Atoi(input.(*corev1.ConfigMap).Data["key"])
		if err != nil {
			return nil, nil, err
		}
		return set(strconv.Itoa(found+1))(input, response)
	}, nil)
	if err != nil {
		t.Fatalf("updating: %v", err)
	}
	want := stored(t, inProcess)
	want.TypeMeta, returned.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
	if attempts != 2 || returned.Data["key"] != "8" || !equality.Semantic.DeepEqual(returned, want) {
		t.Errorf("after %d attempts: %s", attempts, diff.Diff(want, returned))
	}
}

// A caller that reads the result of a failed write finds nothing.
func TestAWriteThatFailedReturnsNothing(t *testing.T) {
	server := start(t, t.TempDir())
	defer stop(t, server)
	inProcess, destroy := inProcessStorage(t, server)
	defer destroy()
	if err := inProcess.Create(t.Context(), writtenKey, configMap("0"), &corev1.ConfigMap{}, 0); err != nil {
		t.Fatalf("creating: %v", err)
	}
	returned := &corev1.ConfigMap{}
	if err := inProcess.Create(t.Context(), writtenKey, configMap("1"), returned, 0); !storage.IsExist(err) {
		t.Errorf("creating it again ended with %v, want that it exists", err)
	}
	if !equality.Semantic.DeepEqual(returned, &corev1.ConfigMap{}) {
		t.Errorf("a create that failed returned %v", returned)
	}
	rejected := errors.New("not like this")
	attempts := 0
	err := inProcess.GuaranteedUpdate(t.Context(), writtenKey, returned, false, nil, func(input runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
		attempts++
		if attempts > 1 {
			return nil, nil, rejected
		}
		// This attempt fails because of another writer.
		if err := inProcess.GuaranteedUpdate(t.Context(), writtenKey, &corev1.ConfigMap{}, false, nil, set("7"), nil); err != nil {
			t.Errorf("writing in between: %v", err)
		}
		return set("1")(input, response)
	}, nil)
	if !errors.Is(err, rejected) || attempts != 2 {
		t.Errorf("the update ended after %d attempts with %v", attempts, err)
	}
	if !equality.Semantic.DeepEqual(returned, &corev1.ConfigMap{}) {
		t.Errorf("an update that failed returned %v", returned)
	}
}

// decodes counts what is decoded.
type decodes struct {
	etcd3.Decoder
	times int
}

func (d *decodes) Decode(value []byte, into runtime.Object, revision int64) error {
	d.times++
	return d.Decoder.Decode(value, into, revision)
}

// objects is a storage that calls what it is given instead of storing.
type objects struct {
	storage.Interface
	decoder etcd3.Decoder
	encoded []byte
}

func (o objects) Create(_ context.Context, _ string, _, out runtime.Object, _ uint64) error {
	return o.decoder.Decode(o.encoded, out, 7)
}

func TestOnlyObjectsThatCannotBeCopiedAreDecoded(t *testing.T) {
	versioner := storage.APIObjectVersioner{}
	encoded := []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"one"},"data":{"key":"decoded"}}`)
	for _, test := range []struct {
		name    string
		written runtime.Object
		out     *corev1.ConfigMap
		decoded int
		want    map[string]string
	}{
		{"the same type", configMap("copied"), &corev1.ConfigMap{}, 0, map[string]string{"key": "copied"}},
		{"another type", &corev1.Secret{}, &corev1.ConfigMap{}, 1, map[string]string{"key": "decoded"}},
		{"nothing", nil, &corev1.ConfigMap{}, 1, map[string]string{"key": "decoded"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			counted := &decodes{Decoder: etcd3.NewDefaultDecoder(configMapCodec(), versioner)}
			writes := skipDecodeWrites{objects{decoder: skipDecoder{counted, versioner}, encoded: encoded}}
			if err := writes.Create(t.Context(), writtenKey, test.written, test.out, 0); err != nil {
				t.Fatal(err)
			}
			if counted.times != test.decoded || test.out.ResourceVersion != "7" || !maps.Equal(test.out.Data, test.want) {
				t.Errorf("after decoding %d times the result is %v", counted.times, test.out)
			}
		})
	}
}
