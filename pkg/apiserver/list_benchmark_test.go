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
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	generatedopenapi "github.com/truefoundry/elasti-apiserver/pkg/generated/openapi"
	elastiserviceregistry "github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
)

const (
	// listedObjects is how many ElastiServices are read.
	listedObjects = 10000
	// fillers is how many of them are stored at the same time.
	fillers = 64
)

// Without a cache of encodings, a list is encoded by what k8s.io/apiserver has for all
// kinds. Resolvers, as all informers, read by a watch that begins with what is stored, and
// by lists only when that is not served. The client does not decode what it reads, which
// takes as long with the cache as without it.
func BenchmarkReadAll(b *testing.B) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	store, err := embedded.Start(b.Context(), embedded.Options{DataDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	fill(b, store.Endpoint())
	const lists, watchLists = "", "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
	for _, variant := range []struct {
		name       string
		serializer runtime.NegotiatedSerializer
	}{
		{"cached", newTextSerializer(Codecs)},
		{"uncached", uncachedSerializer{Codecs}},
	} {
		url := serve(b, store.Endpoint(), variant.serializer)
		for _, read := range []struct {
			name, query string
			all         func(io.Reader) (int64, error)
		}{
			{"list", lists, func(body io.Reader) (int64, error) { return io.Copy(io.Discard, body) }},
			{"watchList", watchLists, readInitialEvents},
		} {
			b.Run(read.name+"/"+variant.name, func(b *testing.B) {
				client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
				defer client.CloseIdleConnections()
				for b.Loop() {
					length, err := readAll(b.Context(), client, url+read.query, read.all)
					if err != nil {
						b.Fatal(err)
					}
					b.SetBytes(length)
				}
			})
		}
	}
}

// uncachedSerializer offers JSON only, as k8s.io/apiserver encodes it.
type uncachedSerializer struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s uncachedSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	var supported []runtime.SerializerInfo
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType == runtime.ContentTypeJSON {
			supported = append(supported, info)
		}
	}
	return supported
}

// readAll sends a request, and returns the length of the response.
func readAll(ctx context.Context, client *http.Client, url string, read func(io.Reader) (int64, error)) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Accept", runtime.ContentTypeJSON)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(response.Body)
		return 0, fmt.Errorf("the response is %s: %s", response.Status, message)
	}
	return read(response.Body)
}

// readInitialEvents reads the events of a watch up to the bookmark after what is stored.
func readInitialEvents(body io.Reader) (length int64, err error) {
	events := bufio.NewReaderSize(body, 1<<20)
	for number := 0; ; number++ {
		event, err := events.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		length += int64(len(event))
		if bytes.HasPrefix(event, []byte(`{"type":"BOOKMARK"`)) && bytes.Contains(event, []byte(metav1.InitialEventsAnnotationKey)) {
			if number != listedObjects {
				return 0, fmt.Errorf("%d events came before the bookmark", number)
			}
			return length, nil
		}
	}
}

// fill stores ElastiServices with all that one can have.
func fill(b *testing.B, endpoint string) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join("..", "apis", "elasti", "install", "testdata", "storage", "elastiservice.v1alpha1.json"))
	if err != nil {
		b.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		b.Fatal(err)
	}
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(fillers)
	for number := range listedObjects {
		group.Go(func() error {
			object := &v1alpha1.ElastiService{}
			if err := json.Unmarshal(text, object); err != nil {
				return err
			}
			object.Name = fmt.Sprintf("app-%05d", number)
			object.UID = types.UID(object.Name)
			encoded, err := json.Marshal(object)
			if err != nil {
				return err
			}
			_, err = client.Put(ctx, "/registry/elasti.truefoundry.com/elasti.truefoundry.com/elastiservices/shop/"+object.Name, string(encoded))
			return err
		})
	}
	if err := errors.Join(group.Wait(), client.Close()); err != nil {
		b.Fatal(err)
	}
}

// serve serves what is stored, and returns the URL of the ElastiServices.
func serve(b *testing.B, endpoint string, serializer runtime.NegotiatedSerializer) (url string) {
	b.Helper()
	completed := benchmarkConfig(b, endpoint)
	generic, err := completed.New("elasti-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(generic.Destroy)
	// Nothing is woken, so that there is no Scaler.
	storage, err := elastiserviceregistry.NewStorage(elastiserviceregistry.Options{Scheme: Scheme, RESTOptions: completed.RESTOptionsGetter, OnlyWriter: true})
	if err != nil {
		b.Fatal(err)
	}
	if err := installAPIGroup(generic, storage, serializer); err != nil {
		b.Fatal(err)
	}
	generic.PrepareRun()
	web := httptest.NewServer(generic.Handler)
	b.Cleanup(web.Close)
	err = wait.PollUntilContextTimeout(b.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return storage.ElastiService.ReadinessCheck() == nil, nil
	})
	if err != nil {
		b.Fatalf("waiting for the watch cache: %v", err)
	}
	return web.URL + "/apis/elasti.truefoundry.com/v1alpha1/elastiservices"
}

func benchmarkConfig(b *testing.B, endpoint string) genericapiserver.CompletedConfig {
	b.Helper()
	config := genericapiserver.NewRecommendedConfig(Codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.LoopbackClientConfig = &clientrest.Config{}
	config.ExternalAddress = "localhost:443"
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	namer := openapi.NewDefinitionNamer(Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	etcd := genericoptions.NewRecommendedOptions("/registry/elasti.truefoundry.com", Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion)).Etcd
	etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(v1alpha1.SchemeGroupVersion, schema.GroupKind{Group: elasti.GroupName})
	etcd.StorageConfig.Transport.ServerList = []string{endpoint}
	etcd.DefaultStorageMediaType = runtime.ContentTypeJSON
	if err := etcd.ApplyTo(&config.Config); err != nil {
		b.Fatal(err)
	}
	return config.Complete()
}
