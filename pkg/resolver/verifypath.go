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
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

const (
	// verifyTimeout bounds a verification. The controller waits 500 ms for the response.
	verifyTimeout = 300 * time.Millisecond
	// verifyInterval is for how long the result of a verification is used. The controller
	// queries again after 250 ms, and has written a slice by then.
	verifyInterval = 200 * time.Millisecond
)

// pathVerifier verifies queries to accept connections, which any client may send. It is safe
// for concurrent use.
type pathVerifier struct {
	client kubernetes.Interface
	logger klog.Logger

	mu sync.Mutex
	// latest are the latest results by the UID of the ElastiService. Those that are too old
	// are dropped when another one is added.
	latest map[types.UID]*verification
}

// verification is one verification. Ended and verified may be read once done is closed.
type verification struct {
	done     chan struct{}
	ended    time.Time
	verified bool
}

// isRecent reports whether the result may be used, or will be known soon. The ports of a query
// are verified one after the other, with one request for all of them, however long that took.
func (v *verification) isRecent() bool {
	select {
	case <-v.done:
		return time.Since(v.ended) < verifyInterval
	default:
		return true
	}
}

func newPathVerifier(client kubernetes.Interface, logger klog.Logger) *pathVerifier {
	return &pathVerifier{client: client, logger: logger, latest: map[types.UID]*verification{}}
}

// verify reports whether resolvers are in the path of a service, or are about to be: the
// resolver observes it, or the API server has a resolver slice, at first without a resolver.
// What the resolver observes may be behind, and then the API server decides.
func (p *pathVerifier) verify(ctx context.Context, svc *service.Service) bool {
	if svc.PathObserved() {
		return true
	}
	p.mu.Lock()
	latest := p.latest[svc.UID]
	if latest != nil && latest.isRecent() {
		p.mu.Unlock()
		<-latest.done
		return latest.verified
	}
	for uid, old := range p.latest {
		if !old.isRecent() {
			delete(p.latest, uid)
		}
	}
	latest = &verification{done: make(chan struct{})}
	p.latest[svc.UID] = latest
	p.mu.Unlock()
	defer func() {
		latest.ended = time.Now()
		close(latest.done)
	}()
	latest.verified = p.hasSlice(ctx, svc)
	return latest.verified
}

// hasSlice reports whether the public Service has a resolver slice of the ElastiService.
func (p *pathVerifier) hasSlice(ctx context.Context, svc *service.Service) bool {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	list, err := p.client.DiscoveryV1().EndpointSlices(svc.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.Set{
		discoveryv1.LabelServiceName: svc.PublicService,
		discoveryv1.LabelManagedBy:   v1alpha1.SliceManagedBy,
		v1alpha1.LabelRole:           v1alpha1.RoleResolver,
	}.AsSelector().String()})
	if err != nil {
		p.logger.V(2).Info("Failed to verify that resolvers are about to be in the path", "service", klog.KRef(svc.Namespace, svc.PublicService), "err", err)
		return false
	}
	return slices.ContainsFunc(list.Items, func(slice discoveryv1.EndpointSlice) bool {
		return slice.Annotations[v1alpha1.AnnotationOwner] == svc.Name
	})
}
