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

package elastiservice

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice/consistency"
)

// Storage holds the endpoints of ElastiServices. All share one store, and so
// one watch cache.
type Storage struct {
	ElastiService *REST
	Status        *StatusREST
	Scale         *ScaleREST
	Wake          *WakeREST
	Activity      *ActivityREST
	// Reader reads ElastiServices inside of the server.
	Reader *Reader
	// StatusWriter changes statuses inside of the server.
	StatusWriter *StatusWriter
	// LastKnown is what wakes use while the storage cannot be read. It has to run.
	LastKnown *LastKnown
	// WakeRecorder writes the records of wakes while it runs.
	WakeRecorder *WakeRecorder
}

// Options is what the endpoints need.
type Options struct {
	// Scheme knows the internal and external types.
	Scheme *runtime.Scheme
	// RESTOptions says where and how objects are stored.
	RESTOptions generic.RESTOptionsGetter
	// Scaler reads and changes the scales of targets. Required.
	Scaler Scaler
	// Events records what wakes did. Required.
	Events EventRecorder
	// Warner says what in the cluster does not fit an ElastiService yet. Nil
	// means that there are no such warnings.
	Warner Warner
	// Access authorizes what a request does beside its own verb: getting the
	// Secrets and ConfigMaps that the triggers of an ElastiService refer to, and
	// scaling an ElastiService that is woken to more than its minimum. Nil allows
	// all.
	Access authorizer.UnconditionalAuthorizer
	// Namespaces are the namespaces in which ElastiServices can be created. Empty
	// means all.
	Namespaces []string
	// OnlyWriter says that no other server writes to the storage, so that a read
	// from the watch cache can return what is stored.
	OnlyWriter bool
	// Clock gives reports of activity their time. Defaults to the real clock.
	Clock clock.PassiveClock
	// Metrics count wakes. Default to metrics that are not exported.
	Metrics *Metrics
}

// NewStorage makes the endpoints of ElastiServices.
func NewStorage(options Options) (*Storage, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Metrics == nil {
		options.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	strategy := newStrategy(options.Scheme)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &elasti.ElastiService{} },
		NewListFunc:               func() runtime.Object { return &elasti.ElastiServiceList{} },
		PredicateFunc:             matchElastiService,
		DefaultQualifiedResource:  elasti.Resource("elastiservices"),
		SingularQualifiedResource: elasti.Resource("elastiservice"),
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            tableConvertor{},
	}
	restOptions := options.RESTOptions
	var written *consistency.VersionTracker
	if options.OnlyWriter {
		written = &consistency.VersionTracker{}
		restOptions = consistency.TrackWrites(restOptions, written, options.Clock)
	}
	storeOptions := &generic.StoreOptions{RESTOptions: restOptions, AttrFunc: getAttributes, Indexers: indexers()}
	if err := store.CompleteWithOptions(storeOptions); err != nil {
		return nil, fmt.Errorf("creating the store of elastiservices: %w", err)
	}
	statusStore := *store
	statusStore.UpdateStrategy = statusStrategy{strategy}
	statusStore.ResetFieldsStrategy = statusStrategy{strategy}
	requestedStatusStore := *store
	requestedStatusStore.UpdateStrategy = requestedStatusStrategy{statusStrategy{strategy}}
	requestedStatusStore.ResetFieldsStrategy = statusStrategy{strategy}
	lastKnown := newLastKnown(store)
	statusWriter := &StatusWriter{statuses: &statusStore}
	wakeRecorder := newWakeRecorder(statusWriter)
	targets := &targets{elastiServices: store, statuses: &statusStore, lastKnown: lastKnown, scaler: options.Scaler, events: options.Events, wakeRecorder: wakeRecorder}
	var access *credentialAccess
	var limit *wakeLimit
	if options.Access != nil {
		access, limit = &credentialAccess{authorizer: options.Access}, &wakeLimit{authorizer: options.Access}
	}
	elastiServices := &REST{Store: store, claims: &serviceClaims{store: store}, access: access, warner: options.Warner, scope: options.Namespaces, written: written, clock: options.Clock}
	return &Storage{
		ElastiService: elastiServices,
		Status:        &StatusREST{store: &requestedStatusStore},
		Scale:         &ScaleREST{targets: targets},
		Wake:          &WakeREST{targets: targets, limit: limit, metrics: options.Metrics, clock: options.Clock},
		Activity:      &ActivityREST{elastiServices: store, statuses: &statusStore, clock: options.Clock},
		Reader:        &Reader{elastiServices: elastiServices},
		StatusWriter:  statusWriter,
		LastKnown:     lastKnown,
		WakeRecorder:  wakeRecorder,
	}, nil
}

// REST is the endpoint of ElastiServices themselves.
type REST struct {
	*genericregistry.Store
	claims *serviceClaims
	access *credentialAccess
	warner Warner
	scope  namespaceScope
	// written tracks all writes. It is nil where other servers write too.
	written *consistency.VersionTracker
	clock   clock.PassiveClock
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// Categories puts ElastiServices into `kubectl get elasti`. They are not in
// `all`, which lists what makes up an application.
func (*REST) Categories() []string { return []string{"elasti"} }

// Get returns an ElastiService as it is stored now, or as of the version in the
// options. It reads from the watch cache where that returns what is stored.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if r.written != nil && options.ResourceVersion == "" && r.written.IsNewest(r.clock.Now()) {
		cached := *options
		cached.ResourceVersion = r.written.ResourceVersion()
		if obj, err := r.Store.Get(ctx, name, &cached); err == nil {
			return obj, nil
		}
		// The storage is read for the reason.
	}
	return r.Store.Get(ctx, name, options)
}

// Create stores a new ElastiService, unless another one names its Service, or
// the caller may not get what its triggers refer to.
func (r *REST) Create(ctx context.Context, obj runtime.Object, createValidation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	claim := r.claims.newClaim()
	defer claim.release()
	ctx, warnings := withClusterWarnings(ctx, r.warner)
	defer warnings.stop()
	created, err := r.Store.Create(ctx, obj, claim.onCreate(r.scope.onCreate(r.access.onCreate(createValidation))), options)
	if err == nil {
		claim.observe(created)
		// Other writes that name the Service need not wait for the warnings.
		claim.release()
		warnings.add(ctx)
	}
	return created, err
}

// Update changes an ElastiService, or creates it for server-side apply, on the
// same conditions.
func (r *REST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	claim := r.claims.newClaim()
	defer claim.release()
	ctx, warnings := withClusterWarnings(ctx, r.warner)
	defer warnings.stop()
	updated, created, err := r.Store.Update(ctx, name, objInfo, claim.onCreate(r.scope.onCreate(r.access.onCreate(createValidation))), claim.onUpdate(r.access.onUpdate(updateValidation)), forceAllowCreate, options)
	if err == nil {
		claim.observe(updated)
		claim.release()
		warnings.add(ctx)
	}
	return updated, created, err
}

// StatusREST is the status subresource. Requests change the conditions of tools
// through it and nothing else: the rest of the status is the server's.
type StatusREST struct {
	store *genericregistry.Store
}

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = &StatusREST{}
	_ rest.TableConvertor      = &StatusREST{}
)

// New returns an empty ElastiService.
func (*StatusREST) New() runtime.Object { return &elasti.ElastiService{} }

// Destroy does nothing: the store belongs to REST.
func (*StatusREST) Destroy() {}

// Get returns the ElastiService with its status.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update changes the status of an ElastiService and nothing else of it.
func (r *StatusREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	// A status is never created on its own, whatever the caller allows.
	return r.store.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
}

// GetResetFields names the fields that a write to the status never changes.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable renders the object as the main endpoint does.
func (r *StatusREST) ConvertToTable(ctx context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, tableOptions)
}
