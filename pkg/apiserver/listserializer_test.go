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

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// jsonSerializers returns the serializer for JSON that is served, and the one
// that it replaces.
func jsonSerializers(t *testing.T) (served, plain runtime.Serializer) {
	t.Helper()
	served, plain = jsonOf(t, newTextSerializer(Codecs)), jsonOf(t, Codecs)
	return served, plain
}

func jsonOf(t *testing.T, serializer runtime.NegotiatedSerializer) runtime.Serializer {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		t.Fatal("no JSON")
	}
	return info.Serializer
}

func encode(t *testing.T, encoder runtime.Encoder, obj runtime.Object) string {
	t.Helper()
	var buffer bytes.Buffer
	if err := encoder.Encode(obj, &buffer); err != nil {
		t.Fatal(err)
	}
	return buffer.String()
}

func listOf(items ...v1alpha1.ElastiService) *v1alpha1.ElastiServiceList {
	return &v1alpha1.ElastiServiceList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ElastiServiceList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "<more>"},
		Items:    items,
	}
}

func item(uid, resourceVersion, service string) v1alpha1.ElastiService {
	return v1alpha1.ElastiService{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ElastiService"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "cart", Namespace: "shop", UID: types.UID(uid), ResourceVersion: resourceVersion,
			Annotations: map[string]string{"note": "a < b & c > \u2028"},
		},
		Spec: v1alpha1.ElastiServiceSpec{Service: service},
	}
}

func TestListsAreEncodedAsEverythingElse(t *testing.T) {
	served, plain := jsonSerializers(t)
	for name, obj := range map[string]runtime.Object{
		"objects":        listOf(item("a", "1", "cart"), item("b", "2", "till")),
		"one object":     listOf(item("c", "1", "cart")),
		"none":           listOf([]v1alpha1.ElastiService{}...),
		"empty":          listOf([]v1alpha1.ElastiService{{}}...),
		"nil":            &v1alpha1.ElastiServiceList{},
		"not a list":     &metav1.Status{Status: metav1.StatusFailure, Message: "no"},
		"without a type": &v1alpha1.ElastiServiceList{Items: []v1alpha1.ElastiService{item("d", "1", "cart")}},
	} {
		want := encode(t, plain, obj)
		for range 2 {
			if got := encode(t, served, obj); got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
			}
		}
	}
	if served.Identifier() != plain.Identifier() {
		t.Error("watches would not share their encodings")
	}
}

func TestChangedObjectsAreEncodedAgain(t *testing.T) {
	served, plain := jsonSerializers(t)
	for _, list := range []*v1alpha1.ElastiServiceList{
		listOf(item("a", "1", "cart")),
		listOf(item("a", "2", "till")),
		// Created under the name of one that was deleted.
		listOf(item("b", "2", "desk")),
		// Without a UID, the objects cannot be distinguished.
		listOf(item("", "3", "cart")),
		listOf(item("", "3", "till")),
	} {
		if got, want := encode(t, served, list), encode(t, plain, list); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A response is compressed as a stream only when it begins with a short write.
func TestListsAreStreamed(t *testing.T) {
	served, _ := jsonSerializers(t)
	var items []v1alpha1.ElastiService
	for i := range 1000 {
		items = append(items, item(fmt.Sprint(i), "1", "cart"))
	}
	writes := &writeLengths{}
	if err := served.Encode(listOf(items...), writes); err != nil {
		t.Fatal(err)
	}
	if len(*writes) < 3 || (*writes)[0] != 1 {
		t.Errorf("writes of %d bytes, want a short one first and then pieces", *writes)
	}
}

type writeLengths []int

func (w *writeLengths) Write(p []byte) (int, error) {
	*w = append(*w, len(p))
	return len(p), nil
}

type brokenWriter struct{ after int }

var errBroken = errors.New("the client has disconnected")

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

func TestListToADisconnectedClientFails(t *testing.T) {
	served, _ := jsonSerializers(t)
	list := listOf(item("a", "1", strings.Repeat("x", 2*listBufferBytes)), item("b", "1", "cart"))
	for _, after := range []int{0, 1, listBufferBytes, 2 * listBufferBytes} {
		if err := served.Encode(list, &brokenWriter{after}); !errors.Is(err, errBroken) {
			t.Errorf("after %d bytes: got %v", after, err)
		}
	}
}

// Encodings of objects that are not listed any more must be freed.
func TestUnusedEncodingsAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cached := newEncodedObjects(1 << 20)
		used, unused := encodingKey{uid: "used", resourceVersion: "1"}, encodingKey{uid: "unused", resourceVersion: "1"}
		cached.add(used, []byte("{}"))
		cached.add(unused, []byte("{}"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go cached.run(ctx, clock.RealClock{})
		for range 3 {
			<-time.After(rotationInterval)
			synctest.Wait()
			if cached.get(used) == nil {
				t.Fatal("an encoding that is used every minute was evicted")
			}
		}
		if cached.get(unused) != nil {
			t.Error("an unused encoding is kept")
		}
	})
}

func TestEncodedObjectsAreBounded(t *testing.T) {
	const object = 1 << 10
	bounded := newEncodedObjects(100 * object)
	key := func(i int) encodingKey { return encodingKey{uid: types.UID(fmt.Sprint(i)), resourceVersion: "1"} }
	for i := range 10000 {
		bounded.add(key(i), make([]byte, object))
		// The first one is in use all the time.
		if bounded.get(key(0)) == nil {
			t.Fatalf("an encoding in use was evicted after %d others", i)
		}
	}
	kept := 0
	for i := range 10000 {
		bounded.mu.Lock()
		if bounded.recent[key(i)] != nil || bounded.older[key(i)] != nil {
			kept++
		}
		bounded.mu.Unlock()
	}
	if kept < 40 || kept > 100 {
		t.Errorf("%d encodings of %d bytes are kept in %d bytes", kept, object, bounded.maxBytes)
	}
	bounded.add(key(-1), make([]byte, 200*object))
	if bounded.get(key(-1)) != nil {
		t.Error("an encoding that does not fit is kept")
	}
}

func TestListsCanBeEncodedAtOnce(t *testing.T) {
	served, plain := jsonSerializers(t)
	list := listOf(item("a", "1", "cart"), item("b", "2", "till"))
	want := encode(t, plain, list)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			var buffer bytes.Buffer
			if err := served.Encode(list, &buffer); err != nil || buffer.String() != want {
				t.Errorf("got %s, %v", buffer.String(), err)
			}
		})
	}
	group.Wait()
}
