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
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/patchcheck"
	elastiserviceregistry "github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice"
	"github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/proxyportclaim"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

// connectionShutdownTimeout is how long a server that ends waits for its
// connections to be closed. The generic server waits for the requests in flight on
// its own. An HTTP/2 connection that was accepted just before gets no GOAWAY, and
// stays for as long as its client keeps it.
const connectionShutdownTimeout = 10 * time.Second

// Runner is something that runs inside of the server, such as the controller.
type Runner interface {
	// Run runs until ctx ends and returns when everything that it started has
	// ended. Its error ends the server.
	Run(ctx context.Context) error
}

// ExtraConfig is what this server needs beyond a generic one.
type ExtraConfig struct {
	// Scaler reads and changes the scales of targets.
	Scaler elastiserviceregistry.Scaler
	// Events records what wake requests did.
	Events elastiserviceregistry.EventRecorder
	// Warner says what in the cluster does not fit an ElastiService yet.
	Warner elastiserviceregistry.Warner
	// Access authorizes what a request does to objects of the host, and beside its
	// own verb.
	Access authorizer.UnconditionalAuthorizer
	// Metrics count what is requested of ElastiServices.
	Metrics *elastiserviceregistry.Metrics
	// Namespaces are the namespaces that the controller works on. Empty means all.
	Namespaces []string
	// OnlyWriter says that no other server writes to the same storage.
	OnlyWriter bool
	// UncachedRESTOptions say how objects are stored that are not watched.
	// Defaults to those of the generic server.
	UncachedRESTOptions generic.RESTOptionsGetter
	// StorageCheck reports why the storage cannot be read. It is not part of
	// liveness: a restart does not repair the storage. Nil when the generic server checks it.
	StorageCheck func(ctx context.Context) error
	// StoreGuard reports whether the storage is the one that the installation uses. The
	// controller runs only while it is.
	StoreGuard *guard.Guard
	// NewController makes the controller, which accesses the server's own objects
	// through the registry. It runs as soon as these can be read, and the server's
	// own endpoints can be reached through the loopback client.
	NewController func(Registry) (Runner, error)
}

// Registry gives the controller the access to the server's own objects that no
// request has.
type Registry struct {
	Reader       *elastiserviceregistry.Reader
	StatusWriter *elastiserviceregistry.StatusWriter
	ProxyPorts   *proxyportclaim.Claims
}

// Config says how the server is made.
type Config struct {
	Generic *genericapiserver.RecommendedConfig
	Extra   ExtraConfig
}

// Server is the API server. It is made with New, and run once.
type Server struct {
	generic    *genericapiserver.GenericAPIServer
	controller Runner
	storeGuard *guard.Guard
	lastKnown  *elastiserviceregistry.LastKnown
	// wakeRecorder records wakes in statuses.
	wakeRecorder *elastiserviceregistry.WakeRecorder
	// lists caches the encodings of what is listed.
	lists *encodedObjects
	// serving is closed when the server's endpoints can be reached.
	serving chan struct{}
}

// New makes the server with all of its endpoints.
func New(config *Config) (*Server, error) {
	config.Generic.BuildHandlerChainFunc = func(apiHandler http.Handler, c *genericapiserver.Config) http.Handler {
		checked := withCheckedPatches(withEmptyWakeBody(apiHandler), c.MaxRequestBodyBytes)
		return genericapiserver.DefaultBuildHandlerChain(withBoundedBodies(checked), c)
	}
	completed := config.Generic.Complete()
	genericServer, err := completed.New("elasti-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("creating the generic API server: %w", err)
	}
	genericServer.ShutdownTimeout = connectionShutdownTimeout
	storage, err := elastiserviceregistry.NewStorage(elastiserviceregistry.Options{
		Scheme:      Scheme,
		RESTOptions: completed.RESTOptionsGetter,
		Scaler:      config.Extra.Scaler,
		Events:      config.Extra.Events,
		Warner:      config.Extra.Warner,
		Namespaces:  config.Extra.Namespaces,
		OnlyWriter:  config.Extra.OnlyWriter,
		Access:      config.Extra.Access,
		Metrics:     config.Extra.Metrics,
	})
	if err != nil {
		return nil, err
	}
	serializer := newTextSerializer(Codecs)
	if err := installAPIGroup(genericServer, storage, serializer); err != nil {
		return nil, fmt.Errorf("installing the API group %s: %w", elasti.GroupName, err)
	}
	uncached := config.Extra.UncachedRESTOptions
	if uncached == nil {
		uncached = completed.RESTOptionsGetter
	}
	claims, err := proxyportclaim.New(uncached)
	if err != nil {
		return nil, err
	}
	genericServer.RegisterDestroyFunc(claims.Destroy)
	controller, err := config.Extra.NewController(Registry{Reader: storage.Reader, StatusWriter: storage.StatusWriter, ProxyPorts: claims})
	if err != nil {
		return nil, err
	}
	server := &Server{generic: genericServer, controller: controller, storeGuard: config.Extra.StoreGuard, lastKnown: storage.LastKnown, wakeRecorder: storage.WakeRecorder, lists: serializer.lists, serving: make(chan struct{})}
	if err := addReadinessChecks(genericServer, &config.Generic.Authentication, &config.Extra); err != nil {
		return nil, fmt.Errorf("adding the readiness checks: %w", err)
	}
	if err := server.reportServing(); err != nil {
		return nil, err
	}
	return server, nil
}

// installAPIGroup adds the endpoints of ElastiServices to a server.
func installAPIGroup(server *genericapiserver.GenericAPIServer, storage *elastiserviceregistry.Storage, serializer runtime.NegotiatedSerializer) error {
	group := genericapiserver.NewDefaultAPIGroupInfo(elasti.GroupName, Scheme, metav1.ParameterCodec, Codecs)
	// NewDefaultAPIGroupInfo has chosen a serializer; this one replaces it.
	group.NegotiatedSerializer = serializer
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"elastiservices":          storage.ElastiService,
		"elastiservices/status":   storage.Status,
		"elastiservices/scale":    storage.Scale,
		"elastiservices/wake":     storage.Wake,
		"elastiservices/activity": storage.Activity,
	}
	return server.InstallAPIGroup(&group)
}

// reportServing closes serving when the server's endpoints can be reached.
func (s *Server) reportServing() error {
	reachable := func(genericapiserver.PostStartHookContext) error {
		close(s.serving)
		return nil
	}
	if err := s.generic.AddPostStartHook("serving", reachable); err != nil {
		return fmt.Errorf("adding the hook after the start: %w", err)
	}
	return nil
}

// withCheckedPatches rejects patches with values of wrong types, and names the paths
// of the fields.
func withCheckedPatches(next http.Handler, maxBytes int64) http.Handler {
	return patchcheck.Handler(next, patchcheck.Options{
		Resource: v1alpha1.SchemeGroupVersion.WithResource("elastiservices"),
		Kind:     elasti.Kind("ElastiService"),
		Type:     reflect.TypeFor[v1alpha1.ElastiService](),
		MaxBytes: maxBytes,
		Codecs:   Codecs,
	})
}

// Run serves until ctx ends or a part of the server fails, and returns when
// everything has ended. Each of watch waits for the failure of something that
// the server cannot be without; its error ends the server.
func (s *Server) Run(ctx context.Context, watch ...func(ctx context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, wait := range watch {
		group.Go(func() error { return wait(ctx) })
	}
	group.Go(func() error { return s.storeGuard.Run(ctx) })
	group.Go(func() error { return s.runController(ctx) })
	group.Go(func() error { return s.followLastKnown(ctx) })
	group.Go(func() error {
		s.wakeRecorder.Run(ctx)
		return nil
	})
	group.Go(func() error {
		s.lists.run(ctx, clock.RealClock{})
		return nil
	})
	group.Go(func() error {
		if err := s.generic.PrepareRun().RunWithContext(ctx); err != nil {
			return fmt.Errorf("serving the API: %w", err)
		}
		if ctx.Err() == nil {
			return errors.New("the API server stopped serving unexpectedly")
		}
		return nil
	})
	return group.Wait()
}

// followLastKnown follows the objects while the store may be used, which can be read then.
func (s *Server) followLastKnown(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.serving:
	}
	return s.storeGuard.While(ctx, func(ctx context.Context) error {
		s.lastKnown.Run(ctx)
		return nil
	})
}

// runController runs the controller while the store may be used.
func (s *Server) runController(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.serving:
	}
	if err := s.storeGuard.While(ctx, s.controller.Run); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the controller failed: %w", err)
	}
	return nil
}
