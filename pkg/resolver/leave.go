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

package resolver

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// leaveTimeout is how long a resolver that ends stays for the EndpointSlices
// that still list it and for clients that still come. It is longer than it takes
// until another API server has taken over from one that vanished.
const leaveTimeout = 30 * time.Second

// listings are the EndpointSlices that send traffic to this resolver. They are safe for
// concurrent use.
type listings struct {
	// own are the addresses of this resolver.
	own []string

	mu   sync.Mutex
	seen map[types.NamespacedName]bool
	// changed has room for one message, and is never closed.
	changed chan struct{}
}

// awaitLeft returns when no resolver slice lists this resolver as ready, after
// leaveTimeout, when it loses the permission to list them, or when ctx ends: while the
// controller is being replaced itself nothing takes resolvers out of the slices,
// and clients that are sent here must be let in.
func (r *Resolver) awaitLeft(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	own := ownAddresses(r.options.BindAddress)
	l := &listings{own: own, seen: map[types.NamespacedName]bool{}, changed: make(chan struct{}, 1)}
	factory := kubeinformers.NewSharedInformerFactoryWithOptions(r.options.Kubernetes, 0,
		kubeinformers.WithTransform(l.keep),
		kubeinformers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = v1alpha1.LabelRole + "=" + v1alpha1.RoleResolver
		}))
	defer factory.Shutdown()
	defer cancel()
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	// Permissions that are deleted together with this resolver do not come back.
	handleErr := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			cancel()
		}
	})
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { l.note(object, false) },
		UpdateFunc: func(_, object any) { l.note(object, false) },
		DeleteFunc: func(object any) { l.note(object, true) },
	})
	if err := errors.Join(handleErr, err); err != nil {
		r.options.Logger.Error(err, "Failed to watch the EndpointSlices that list this resolver, will not wait until none does")
		return
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		r.options.Logger.Info("The cache of the EndpointSlices that list this resolver did not sync in time")
		return
	}
	for !l.empty() {
		select {
		case <-l.changed:
		case <-ctx.Done():
			r.options.Logger.Info("EndpointSlices still list this resolver", "addresses", own, "waited", leaveTimeout)
			return
		}
	}
}

// awaitQuiet returns when no client has come for Drain.Delay: what leads traffic
// here, such as kube-proxy, may be slow to follow the EndpointSlices where a node
// is busy. Some clients do not follow the EndpointSlices, so it waits for quiet until the
// deadline at most, or until ctx ends.
func (r *Resolver) awaitQuiet(ctx context.Context, deadline time.Time) {
	quiet := time.Now()
	if last := quiet.Add(r.options.Drain.Delay); deadline.Before(last) {
		deadline = last
	}
	for {
		if accepted := r.listeners.LastAccepted(); accepted.After(quiet) {
			quiet = accepted
		}
		until := quiet.Add(r.options.Drain.Delay)
		if until.After(deadline) {
			until = deadline
		}
		left := time.Until(until)
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return
		}
	}
}

// keep is a transform that leaves of a slice only the endpoint of this resolver.
func (l *listings) keep(object any) (any, error) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return object, nil
	}
	kept := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: slice.Namespace, Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion,
		Labels: map[string]string{v1alpha1.LabelRole: slice.Labels[v1alpha1.LabelRole]},
	}}
	if slice.Labels[v1alpha1.LabelRole] != v1alpha1.RoleResolver {
		return kept, nil
	}
	for _, endpoint := range slice.Endpoints {
		if len(endpoint.Addresses) > 0 && ptr.Deref(endpoint.Conditions.Ready, true) && slices.Contains(l.own, endpoint.Addresses[0]) {
			kept.Endpoints = append(kept.Endpoints, endpoint)
		}
	}
	return kept, nil
}

func (l *listings) note(object any, deleted bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	name := cache.MetaObjectToName(slice).AsNamespacedName()
	l.mu.Lock()
	defer l.mu.Unlock()
	if deleted || len(slice.Endpoints) == 0 {
		delete(l.seen, name)
	} else {
		l.seen[name] = true
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *listings) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen) == 0
}

// ownAddresses returns the addresses at which others reach this process when it listens
// on bind, which may stand for all of them.
func ownAddresses(bind string) []string {
	if address := net.ParseIP(bind); address != nil && !address.IsUnspecified() {
		return []string{address.String()}
	}
	var own []string
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && !network.IP.IsLoopback() {
			own = append(own, network.IP.String())
		}
	}
	return own
}
