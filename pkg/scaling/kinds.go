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

package scaling

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// maxCachedVersions bounds each of the discovery caches, whose keys come from users.
	maxCachedVersions = 512
	// refreshInterval is the least time between two discoveries of one group
	// version. It bounds both the load of targets whose kind is missing and
	// how long a kind that was just installed stays unknown.
	refreshInterval = time.Second
	// discoveryTimeout ends a discovery that hangs. Callers wait for it only until
	// their own contexts end.
	discoveryTimeout = 10 * time.Second
)

// kinds maps kinds to resources by discovery. It is safe for concurrent use.
type kinds struct {
	client rest.Interface
	clock  clock.PassiveClock

	fetches singleflight.Group

	mu sync.Mutex
	// served and missing hold a *versionKinds for each schema.GroupVersion, with kinds and
	// without. Users can name any number of those that are missing, which must not evict
	// what others use.
	served, missing *lru.Cache
}

// versionKinds is the discovery of one group version. It is immutable.
type versionKinds struct {
	fetched time.Time
	// byKind is keyed by kind and, for the legacy spellings, by resource name.
	byKind map[string]scalableResource
}

type scalableResource struct {
	name     string
	scalable bool
}

func newKinds(client rest.Interface, clock clock.PassiveClock) *kinds {
	return &kinds{client: client, clock: clock, served: lru.New(maxCachedVersions), missing: lru.New(maxCachedVersions)}
}

// resolve returns the resource of a kind that can be scaled, or a *KindError.
func (k *kinds) resolve(ctx context.Context, apiVersion, kind string) (schema.GroupVersionResource, error) {
	groupVersion, err := parseGroupVersion(apiVersion)
	if err != nil || kind == "" {
		return schema.GroupVersionResource{}, &KindError{APIVersion: apiVersion, Kind: kind, Problem: KindInvalid}
	}
	version := k.cached(groupVersion)
	if !version.knows(kind) && (version == nil || k.stale(version)) {
		if version, err = k.refresh(ctx, groupVersion); err != nil {
			return schema.GroupVersionResource{}, fmt.Errorf("discovering the kinds of %q: %w", apiVersion, err)
		}
	}
	if !version.knows(kind) {
		return schema.GroupVersionResource{}, &KindError{APIVersion: apiVersion, Kind: kind, Problem: KindNotServed}
	}
	resource := version.byKind[kind]
	if !resource.scalable {
		return schema.GroupVersionResource{}, &KindError{APIVersion: apiVersion, Kind: kind, Problem: KindNotScalable}
	}
	return groupVersion.WithResource(resource.name), nil
}

// forget drops the discovery of a group version, one of whose resources is not
// served any more.
func (k *kinds) forget(groupVersion schema.GroupVersion) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.served.Remove(groupVersion)
	k.missing.Remove(groupVersion)
}

func (k *kinds) cached(groupVersion schema.GroupVersion) *versionKinds {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, cache := range []*lru.Cache{k.served, k.missing} {
		if version, ok := cache.Get(groupVersion); ok {
			return version.(*versionKinds)
		}
	}
	return nil
}

// cache records the discovery of a group version.
func (k *kinds) cache(groupVersion schema.GroupVersion, version *versionKinds) {
	k.mu.Lock()
	defer k.mu.Unlock()
	into, other := k.served, k.missing
	if len(version.byKind) == 0 {
		into, other = k.missing, k.served
	}
	into.Add(groupVersion, version)
	other.Remove(groupVersion)
}

func (k *kinds) stale(version *versionKinds) bool {
	return k.clock.Since(version.fetched) >= refreshInterval
}

// refresh discovers a group version, once for all concurrent callers.
func (k *kinds) refresh(ctx context.Context, groupVersion schema.GroupVersion) (*versionKinds, error) {
	result := k.fetches.DoChan(groupVersion.String(), func() (any, error) {
		// Another discovery may have ended after the caller read the cache.
		if version := k.cached(groupVersion); version != nil && !k.stale(version) {
			return version, nil
		}
		// Not the context of the first caller: the others must not fail when it
		// ends.
		fetchCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discoveryTimeout)
		defer cancel()
		version, err := k.discover(fetchCtx, groupVersion)
		if err != nil {
			return nil, err
		}
		k.cache(groupVersion, version)
		return version, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case fetched := <-result:
		if fetched.Err != nil {
			return nil, fetched.Err
		}
		return fetched.Val.(*versionKinds), nil
	}
}

func (k *kinds) discover(ctx context.Context, groupVersion schema.GroupVersion) (*versionKinds, error) {
	version := &versionKinds{fetched: k.clock.Now(), byKind: map[string]scalableResource{}}
	list := &metav1.APIResourceList{}
	err := k.client.Get().AbsPath(versionPath(groupVersion)...).Do(ctx).Into(list)
	if apierrors.IsNotFound(err) {
		return version, nil
	}
	if err != nil {
		return nil, err
	}
	withScale := map[string]bool{}
	for _, resource := range list.APIResources {
		if name, ok := strings.CutSuffix(resource.Name, "/scale"); ok {
			withScale[name] = true
		}
	}
	for _, resource := range list.APIResources {
		if strings.Contains(resource.Name, "/") {
			continue
		}
		found := scalableResource{name: resource.Name, scalable: resource.Namespaced && withScale[resource.Name]}
		version.byKind[resource.Kind] = found
		version.byKind[resource.Name] = found
	}
	return version, nil
}

func (v *versionKinds) knows(kind string) bool {
	if v == nil {
		return false
	}
	_, ok := v.byKind[kind]
	return ok
}

// parseGroupVersion accepts only what is safe as two segments of a path.
func parseGroupVersion(apiVersion string) (schema.GroupVersion, error) {
	groupVersion, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return schema.GroupVersion{}, err
	}
	if groupVersion.Group != "" {
		if problems := validation.IsDNS1123Subdomain(groupVersion.Group); len(problems) > 0 {
			return schema.GroupVersion{}, fmt.Errorf("invalid group %q: %s", groupVersion.Group, problems[0])
		}
	}
	if problems := validation.IsDNS1035Label(groupVersion.Version); len(problems) > 0 {
		return schema.GroupVersion{}, fmt.Errorf("invalid version %q: %s", groupVersion.Version, problems[0])
	}
	return groupVersion, nil
}

func versionPath(groupVersion schema.GroupVersion) []string {
	if groupVersion.Group == "" {
		return []string{"/api", groupVersion.Version}
	}
	return []string{"/apis", groupVersion.Group, groupVersion.Version}
}
