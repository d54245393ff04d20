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

package elastiservice_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/compatibility"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	generatedopenapi "github.com/truefoundry/elasti-apiserver/pkg/generated/openapi"
	elastiserviceregistry "github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
)

const namespace = "shop"

// TestMain keeps the logs of etcd and of the generic server to verbose runs.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(m.Run())
}

// server serves the endpoints of ElastiServices from a real etcd, without
// authentication and authorization.
type server struct {
	client versioned.Interface
	reader *elastiserviceregistry.Reader
	// statuses writes statuses as the controller does.
	statuses *elastiserviceregistry.StatusWriter
	// readOnly makes the storage reject all writes, rejected counts these.
	readOnly atomic.Bool
	rejected atomic.Int32
	// away makes the storage not respond.
	away   atomic.Bool
	config *clientrest.Config
	scaler *fakeScaler
	events *eventLog
	// metrics are those of the endpoints.
	metrics *prometheus.Registry
}

func startServer(t *testing.T, warner elastiserviceregistry.Warner) *server {
	t.Helper()
	return startServerIn(t, warner)
}

// startServerIn starts a server in which ElastiServices can be created in some namespaces
// only, in all without any.
func startServerIn(t *testing.T, warner elastiserviceregistry.Warner, namespaces ...string) *server {
	t.Helper()
	store, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})

	completed := storingConfig(t, store)
	generic, err := completed.New("elasti-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(generic.Destroy)

	s := &server{scaler: newFakeScaler(), events: &eventLog{}, metrics: prometheus.NewPedanticRegistry()}
	endpoints, err := elastiserviceregistry.NewStorage(elastiserviceregistry.Options{
		Scheme:      apiserver.Scheme,
		RESTOptions: switchable{completed.RESTOptionsGetter, &s.readOnly, &s.rejected, &s.away},
		Scaler:      s.scaler,
		Events:      s.events,
		Warner:      warner,
		Namespaces:  namespaces,
		// As with the embedded store of a server.
		OnlyWriter: true,
		Metrics:    elastiserviceregistry.NewMetrics(s.metrics),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.reader, s.statuses = endpoints.Reader, endpoints.StatusWriter
	runUntilCleanup(t, endpoints.WakeRecorder.Run)
	group := genericapiserver.NewDefaultAPIGroupInfo(elasti.GroupName, apiserver.Scheme, metav1.ParameterCodec, apiserver.Codecs)
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"elastiservices":          endpoints.ElastiService,
		"elastiservices/status":   endpoints.Status,
		"elastiservices/scale":    endpoints.Scale,
		"elastiservices/wake":     endpoints.Wake,
		"elastiservices/activity": endpoints.Activity,
	}
	if err := generic.InstallAPIGroup(&group); err != nil {
		t.Fatal(err)
	}
	generic.PrepareRun()

	web := httptest.NewServer(generic.Handler)
	t.Cleanup(web.Close)
	s.config = &clientrest.Config{Host: web.URL, QPS: -1}
	if s.client, err = versioned.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	s.awaitReady(t, endpoints.ElastiService.ReadinessCheck)
	runUntilCleanup(t, endpoints.LastKnown.Run)
	return s
}

// runUntilCleanup runs something until the test has ended.
func runUntilCleanup(t *testing.T, run func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// storingConfig is the configuration of a server whose objects are in a store.
func storingConfig(t *testing.T, store *embedded.Server) genericapiserver.CompletedConfig {
	t.Helper()
	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.LoopbackClientConfig = &clientrest.Config{}
	config.ExternalAddress = "localhost:443"
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	namer := openapi.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	recommended := genericoptions.NewRecommendedOptions("/registry/elasti.truefoundry.com", apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion))
	etcd := recommended.Etcd
	etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(v1alpha1.SchemeGroupVersion, schema.GroupKind{Group: elasti.GroupName})
	etcd.StorageConfig.Transport.ServerList = []string{store.Endpoint()}
	etcd.DefaultStorageMediaType = runtime.ContentTypeJSON
	if err := etcd.ApplyTo(&config.Config); err != nil {
		t.Fatal(err)
	}
	return config.Complete()
}

func (s *server) awaitReady(t *testing.T, ready func() error) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return ready() == nil, nil
	})
	if err != nil {
		t.Fatalf("the watch cache does not get ready: %v", ready())
	}
}

// switchable makes storages that reject writes while readOnly is on, and do not
// respond while away is on.
type switchable struct {
	generic.RESTOptionsGetter
	readOnly *atomic.Bool
	rejected *atomic.Int32
	away     *atomic.Bool
}

func (s switchable) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := s.RESTOptionsGetter.GetRESTOptions(resource, example)
	decorate := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(obj runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		decorated, destroy, err := decorate(config, resourcePrefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		return switchedStorage{decorated, s.readOnly, s.rejected, s.away}, destroy, err
	}
	return options, err
}

// switchedStorage rejects changes of objects while readOnly is on, as an etcd does
// whose quota is used up, and does not respond to reads while away is on, as an
// etcd does that has lost its quorum.
type switchedStorage struct {
	storage.Interface
	readOnly *atomic.Bool
	rejected *atomic.Int32
	away     *atomic.Bool
}

func (s switchedStorage) Get(ctx context.Context, key string, options storage.GetOptions, object runtime.Object) error {
	if s.away.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Interface.Get(ctx, key, options, object)
}

func (s switchedStorage) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	if s.readOnly.Load() {
		s.rejected.Add(1)
		return errors.New("etcdserver: mvcc: database space exceeded")
	}
	return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached)
}

// keyOf is the key of an ElastiService.
func keyOf(elastiService *v1alpha1.ElastiService) types.NamespacedName {
	return cache.MetaObjectToName(elastiService).AsNamespacedName()
}

// fakeScaler holds scales of Deployments in memory.
type fakeScaler struct {
	mu       sync.Mutex
	scales   map[scaling.Target]*autoscalingv1.Scale
	failWith error
	// afterWake is called once, after the first wake.
	afterWake func()
}

var _ elastiserviceregistry.Scaler = &fakeScaler{}

func newFakeScaler() *fakeScaler {
	return &fakeScaler{scales: map[scaling.Target]*autoscalingv1.Scale{}}
}

// put sets the replicas of the Deployment called name.
func (f *fakeScaler) put(name string, replicas int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scales[deployment(name)] = &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, ResourceVersion: "1"},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
		Status:     autoscalingv1.ScaleStatus{Replicas: replicas, Selector: "app=" + name},
	}
}

func deployment(name string) scaling.Target {
	return scaling.Target{Namespace: namespace, APIVersion: "apps/v1", Kind: "Deployment", Name: name}
}

func (f *fakeScaler) Wake(_ context.Context, target scaling.Target, _ scaling.Autoscaler, minimum int32, dryRun bool) (scaling.Result, error) {
	f.mu.Lock()
	afterWake := f.afterWake
	f.afterWake = nil
	defer func() {
		f.mu.Unlock()
		if afterWake != nil {
			afterWake()
		}
	}()
	if f.failWith != nil {
		return scaling.Result{}, f.failWith
	}
	scale, ok := f.scales[target]
	if !ok {
		return scaling.Result{}, notFound(target)
	}
	desired := max(scale.Spec.Replicas, minimum)
	scaled, fromZero := desired != scale.Spec.Replicas, scale.Spec.Replicas == 0
	if !dryRun {
		scale.Spec.Replicas = desired
	}
	return scaling.Result{Replicas: desired, Scaled: scaled, FromZero: scaled && fromZero}, nil
}

func (f *fakeScaler) WakeFromZero(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32) (scaling.Result, error) {
	return f.Wake(ctx, target, autoscaler, minimum, false)
}

func (f *fakeScaler) Get(_ context.Context, target scaling.Target) (*autoscalingv1.Scale, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	scale, ok := f.scales[target]
	if !ok {
		return nil, notFound(target)
	}
	return scale.DeepCopy(), nil
}

func (f *fakeScaler) Scale(_ context.Context, target scaling.Target, replicas int32, dryRun bool) (*autoscalingv1.Scale, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	scale, ok := f.scales[target]
	if !ok {
		return nil, notFound(target)
	}
	changed := scale.DeepCopy()
	changed.Spec.Replicas = replicas
	if !dryRun {
		f.scales[target] = changed
	}
	return changed.DeepCopy(), nil
}

func notFound(target scaling.Target) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, target.Name)
}

// eventLog keeps the reasons of Events.
type eventLog struct {
	mu      sync.Mutex
	reasons []string
}

var _ elastiserviceregistry.EventRecorder = &eventLog{}

func (l *eventLog) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reasons = append(l.reasons, reason)
}

func (l *eventLog) recorded() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.reasons...)
}

// newElastiService returns a valid ElastiService for the Deployment of the same
// name.
func newElastiService(name, service string) *v1alpha1.ElastiService {
	return &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1alpha1.ElastiServiceSpec{
			Service:        service,
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		},
	}
}
