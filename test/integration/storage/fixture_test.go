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
	"io"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/apitesting"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/cluster"
)

const podPrefix = "/pods/"

// storedPods is where the host cluster stores pods.
var storedPods = cluster.GroupVersion.WithResource("storedpods")

// stack is one replica's access to the stored pods.
type stack struct {
	storage.Interface
	codec *transformingCodec
}

// GuaranteedUpdate leaves the time to live out, which a test about something else
// gives to a pod.
func (s *stack) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cached runtime.Object) error {
	lasting := func(input runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		updated, _, err := tryUpdate(input, meta)
		return updated, nil, err
	}
	return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, lasting, cached)
}

// UpdatePrefixTransformer implements storagetesting.InterfaceWithPrefixTransformer.
func (s *stack) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	before := s.codec.transformer.Load()
	copied := *(*before).(*storagetesting.PrefixTransformer)
	after := modify(&copied)
	s.codec.transformer.Store(&after)
	return func() { s.codec.transformer.Store(before) }
}

// transformingCodec changes what is stored, as the tests of k8s.io/apiserver
// expect it of an encryption.
type transformingCodec struct {
	runtime.Codec
	transformer atomic.Pointer[value.Transformer]
}

func newTransformingCodec() *transformingCodec {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	codec := &transformingCodec{Codec: apitesting.TestCodec(serializer.NewCodecFactory(scheme), examplev1.SchemeGroupVersion)}
	transformer := value.Transformer(storagetesting.NewPrefixTransformer([]byte("test!"), false))
	codec.transformer.Store(&transformer)
	return codec
}

type anyContext struct{}

func (anyContext) AuthenticatedData() []byte { return nil }

func (c *transformingCodec) Encode(object runtime.Object, writer io.Writer) error {
	encoded, err := runtime.Encode(c.Codec, object)
	if err != nil {
		return err
	}
	transformed, err := (*c.transformer.Load()).TransformToStorage(context.Background(), encoded, anyContext{})
	if err != nil {
		return err
	}
	_, err = writer.Write(transformed)
	return err
}

func (c *transformingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	encoded, _, err := (*c.transformer.Load()).TransformFromStorage(context.Background(), data, anyContext{})
	if err != nil {
		return nil, nil, err
	}
	return c.Codec.Decode(encoded, defaults, into)
}

// setup configures a stack.
type setup struct {
	// cached puts a watch cache on the storage, as for ElastiServices.
	cached bool
	// clusterScoped gives pods keys without a namespace.
	clusterScoped bool
	// indexed gives the watch cache the indexes that pods have.
	indexed bool
	// wrap wraps the transport to the host cluster.
	wrap func(*rest.Config)
}

// newStack returns access to the stored pods, of which there are none yet.
func newStack(t *testing.T, options setup) *stack {
	t.Helper()
	t.Cleanup(func() { deleteAll(t) })
	return newReplica(t, options)
}

// newReplica returns the access of another replica to the stored pods.
func newReplica(t *testing.T, options setup) *stack {
	t.Helper()
	config := asServer()
	if options.wrap != nil {
		options.wrap(config)
	}
	backend, err := cluster.NewBackend(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	codec := newTransformingCodec()
	base := generic.RESTOptions{StorageConfig: &storagebackend.ConfigForResource{
		Config:        storagebackend.Config{Codec: codec, EventsHistoryWindow: cacher.DefaultEventFreshDuration},
		GroupResource: schema.GroupResource{Resource: "pods"},
	}}
	restOptions, err := backend.RESTOptions(base, !options.cached).GetRESTOptions(schema.GroupResource{Resource: "pods"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keyOf := storage.NamespaceKeyFunc
	if options.clusterScoped {
		keyOf = storage.NoNamespaceKeyFunc
	}
	indexerFuncs, indexers := storage.IndexerFuncs(nil), cache.Indexers{}
	if options.indexed {
		indexerFuncs, indexers = podIndexes()
	}
	made, destroy, err := restOptions.Decorator(restOptions.StorageConfig, podPrefix,
		func(object runtime.Object) (string, error) { return keyOf(podPrefix, object) },
		func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} },
		podAttributes, indexerFuncs, &indexers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	await(t, "the storage is ready", func() bool { return made.ReadinessCheck() == nil })
	await(t, "progress is supported", func() bool {
		return feature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
	})
	return &stack{Interface: made, codec: codec}
}

// deleteAll deletes all stored pods.
func deleteAll(t *testing.T) {
	t.Helper()
	err := dynamicClient(t, asServer()).Resource(storedPods).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		t.Errorf("deleting the stored pods: %v", err)
	}
}

func podAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	pod := object.(*example.Pod)
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

func podIndexes() (storage.IndexerFuncs, cache.Indexers) {
	nodeName := func(object runtime.Object) string { return object.(*example.Pod).Spec.NodeName }
	return storage.IndexerFuncs{"spec.nodeName": nodeName}, cache.Indexers{
		"f:spec.nodeName":      func(object any) ([]string, error) { return []string{nodeName(object.(*example.Pod))}, nil },
		"f:metadata.namespace": func(object any) ([]string, error) { return []string{object.(*example.Pod).Namespace}, nil },
	}
}

// createAwaiting is a storage whose Create returns when the watch cache has the
// object, as some tests of k8s.io/apiserver need it.
type createAwaiting struct{ storage.Interface }

func (s createAwaiting) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.Interface.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, pollInterval, waitTimeout, true, func(ctx context.Context) (bool, error) {
		cached := &example.Pod{}
		err := s.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, cached)
		if storage.IsNotFound(err) {
			return false, nil
		}
		return err == nil && apiequality.Semantic.DeepEqual(cached, out), err
	})
}

// fromStart is a storage that was empty at its first version. The version 1, which
// a test watches from, stands for that one: the host cluster is older.
type fromStart struct {
	storage.Interface
	first string
}

func startingAt(t *testing.T, store storage.Interface) fromStart {
	t.Helper()
	first, err := store.GetCurrentResourceVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fromStart{store, strconv.FormatUint(first, 10)}
}

func (s fromStart) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if opts.ResourceVersion == "1" {
		opts.ResourceVersion = s.first
	}
	return s.Interface.Watch(ctx, key, opts)
}

// increaseVersion writes another object in the host cluster.
func increaseVersion(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	version, err := writeElsewhere(ctx)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// compact drops the versions of the host cluster before one.
func compact(ctx context.Context, t *testing.T, oldest string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{host.EtcdEndpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	parsed, err := strconv.ParseInt(oldest, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	version, _, compacted, err := etcd3.Compact(ctx, client, 0, parsed)
	if err == nil && compacted != parsed {
		// The host cluster has compacted before.
		_, _, _, err = etcd3.Compact(ctx, client, version, parsed)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, what string, reached func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, waitTimeout, true, func(context.Context) (bool, error) { return reached(), nil })
	if err != nil {
		t.Fatalf("waited %s in vain until %s", waitTimeout.Round(time.Second), what)
	}
}
