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

// Package proxyportstest has claims of proxy ports for tests.
//
// It knows nothing of the storage, nor of how ports are chosen. Begin with Claims.
package proxyportstest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
)

// Claims are claims in memory. They may fail before and after they have done what
// they were called. They are safe for concurrent use.
type Claims struct {
	mu sync.Mutex
	// The rest is guarded by mu.

	stored                map[int32]v1alpha1.ProxyPortClaimSpec
	failBefore, failAfter error
	damaged               map[int32]bool
	calls                 int
	before                func()
}

var _ proxyports.Claims = &Claims{}

// New returns claims of which some are stored.
func New(claims ...v1alpha1.ProxyPortClaimSpec) *Claims {
	c := &Claims{stored: map[int32]v1alpha1.ProxyPortClaimSpec{}}
	for _, claim := range claims {
		c.stored[claim.ProxyPort] = claim
	}
	return c
}

// Claim implements proxyports.Claims.
func (c *Claims) Claim(_ context.Context, desired v1alpha1.ProxyPortClaimSpec) (v1alpha1.ProxyPortClaimSpec, error) {
	c.callBefore()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.failBefore != nil {
		return v1alpha1.ProxyPortClaimSpec{}, c.failBefore
	}
	if c.damaged[desired.ProxyPort] {
		return v1alpha1.ProxyPortClaimSpec{}, nil
	}
	if _, taken := c.stored[desired.ProxyPort]; !taken {
		c.stored[desired.ProxyPort] = desired
	}
	return c.stored[desired.ProxyPort], c.failAfter
}

// Release implements proxyports.Claims.
func (c *Claims) Release(_ context.Context, proxyPort int32, owner types.UID) error {
	c.callBefore()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.failBefore != nil {
		return c.failBefore
	}
	if c.damaged[proxyPort] {
		return errors.New("the stored object is damaged")
	}
	if c.stored[proxyPort].Owner.UID == owner {
		delete(c.stored, proxyPort)
	}
	return c.failAfter
}

// List implements proxyports.Claims.
func (c *Claims) List(context.Context) ([]v1alpha1.ProxyPortClaimSpec, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	listed := maps.Clone(c.stored)
	maps.DeleteFunc(listed, func(proxyPort int32, _ v1alpha1.ProxyPortClaimSpec) bool { return c.damaged[proxyPort] })
	return slices.Collect(maps.Values(listed)), c.failBefore
}

// Before calls a function when something is claimed or released the next time, before that
// is done.
func (c *Claims) Before(call func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = call
}

func (c *Claims) callBefore() {
	c.mu.Lock()
	call := c.before
	c.before = nil
	c.mu.Unlock()
	if call != nil {
		call()
	}
}

// Fail makes each call fail from now on, before or after it has done what it was
// called. Nil makes them succeed.
func (c *Claims) Fail(before, after error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failBefore, c.failAfter = before, after
}

// Damage makes the stored claims of some proxy ports unreadable, and those of all others
// readable. Lists leave them out.
func (c *Claims) Damage(proxyPorts ...int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.damaged = map[int32]bool{}
	for _, proxyPort := range proxyPorts {
		c.damaged[proxyPort] = true
	}
}

// Stored returns a copy of the claims by proxy port.
func (c *Claims) Stored() map[int32]v1alpha1.ProxyPortClaimSpec {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.stored)
}

// Calls returns how often something was claimed or released.
func (c *Claims) Calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}
