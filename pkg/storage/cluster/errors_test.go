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

package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

// undecodable is a decoder that can decode nothing.
type undecodable struct{ etcd3.Decoder }

func (undecodable) Decode([]byte, runtime.Object, int64) error { return errors.New("no kind") }

// Controllers act on an object that cannot be read. They must not take an outage of the
// storage for that.
func TestDamagedObjectsDifferFromAnOutage(t *testing.T) {
	for name, damage := range map[string]func(*StoredObject){
		"its data cannot be decoded": func(*StoredObject) {},
		"its data was edited":        func(stored *StoredObject) { stored.Data += " " },
		"its key was edited":         func(stored *StoredObject) { stored.Key = "ns/other" },
	} {
		t.Run(name, func(t *testing.T) {
			stored := newStoredObject("ns/name", []byte("{}"))
			stored.ResourceVersion = "7"
			damage(stored)
			damaged := &store{host: &hostClient{resource: "storedpods"}, decoder: undecodable{}, prefix: "/pods/"}
			err := damaged.decode(stored, &example.Pod{})
			if !apierrors.IsStoreReadError(err) || !strings.Contains(err.Error(), "storedpods/n.ns.name") {
				t.Errorf("reading it: %v", err)
			}
		})
	}
	resource := schema.GroupResource{Resource: "storedpods"}
	for name, err := range map[string]error{
		"the host has an internal error":       apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
		"the host cannot read it":              storeReadError(errors.New("unable to transform")),
		"the host does not serve the resource": apierrors.NewNotFound(resource, "n.ns.name"),
		"the host does not allow it":           apierrors.NewForbidden(resource, "n.ns.name", nil),
		"the host does not respond":            errors.New("connection refused"),
		"the host does not respond in time":    context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			if err := asStorageError(err, "reading /pods/ns/name"); apierrors.IsStoreReadError(err) {
				t.Errorf("reading it: %v", err)
			}
		})
	}
}
