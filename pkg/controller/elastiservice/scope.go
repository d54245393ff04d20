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
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
)

// leaveInterval is the pause between two attempts to leave namespaces.
const leaveInterval = 30 * time.Second

// leaveNamespaces restores namespaces that an earlier process managed and this one does not:
// their targets are awake, no managed object is left in them, and no finalizer that would
// block the deletion of their ElastiServices. It goes on until ctx ends: in the course of an
// upgrade, a replica that is about to end still accepts ElastiServices there.
func (c *Controller) leaveNamespaces(ctx context.Context) {
	for {
		if err := c.tryLeaveNamespaces(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to clean up namespaces that are no longer managed, will retry; their targets may be without replicas until the server may scale them", "retryIn", leaveInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.clock.After(leaveInterval):
		}
	}
}

func (c *Controller) tryLeaveNamespaces(ctx context.Context) error {
	all, err := c.options.Reader.List(ctx, metav1.NamespaceAll, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing ElastiServices: %w", err)
	}
	// One for all namespaces.
	pacer := rate.NewLimiter(rate.Limit(c.options.WakeRate), max(1, int(c.options.WakeRate)))
	outside := map[string][]*v1alpha1.ElastiService{}
	for i := range all.Items {
		elastiService := &all.Items[i]
		if !c.inScope(elastiService.Namespace) && slices.Contains(elastiService.Finalizers, v1alpha1.Finalizer) {
			outside[elastiService.Namespace] = append(outside[elastiService.Namespace], elastiService)
		}
	}
	return forEach(slices.Sorted(maps.Keys(outside)), func(namespace *string) string { return *namespace }, func(namespace *string) error {
		return c.leaveNamespace(ctx, *namespace, outside[*namespace], pacer)
	})
}

// leaveNamespace leaves one namespace. What cannot be done there is no reason to stay
// in others.
func (c *Controller) leaveNamespace(ctx context.Context, namespace string, elastiServices []*v1alpha1.ElastiService, pacer *rate.Limiter) error {
	teardown := &Teardown{
		Host: c.host, Scaling: c.scaling, Signers: loaded{c.options.Signer}, Namespaces: []string{namespace},
		ElastiServices: elastiServices, KeepResolvers: true, Pacer: pacer, Clock: c.clock,
	}
	if err := teardown.Run(ctx); err != nil {
		return fmt.Errorf("restoring namespace %s: %w", namespace, err)
	}
	var problems []error
	for _, elastiService := range elastiServices {
		if err := c.abandon(ctx, elastiService); err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, fmt.Errorf("releasing ElastiService %s/%s: %w", elastiService.Namespace, elastiService.Name, err))
		}
	}
	return errors.Join(problems...)
}

// abandon removes from a status what the server acts on and its conditions, and the finalizer.
func (c *Controller) abandon(ctx context.Context, elastiService *v1alpha1.ElastiService) error {
	updated, err := c.options.Statuses.UpdateStatus(ctx, resources.KeyOf(elastiService), elastiService.UID, func(stored *v1alpha1.ElastiService) error {
		if stored.ResourceVersion != elastiService.ResourceVersion {
			return errChanged
		}
		status := &stored.Status
		status.Mode, status.ProxyPorts, status.PrivateService, status.ReadinessProbes = "", nil, "", nil
		status.ManagedTarget, status.SleepRequestedTime, status.SleepRequestedBy = nil, nil, ""
		status.Conditions = slices.DeleteFunc(status.Conditions, func(condition metav1.Condition) bool {
			return slices.Contains(v1alpha1.ConditionTypes(), condition.Type)
		})
		return nil
	})
	if err != nil {
		return err
	}
	c.ports.Release(resources.KeyOf(elastiService))
	remaining := slices.DeleteFunc(slices.Clone(updated.Finalizers), func(finalizer string) bool { return finalizer == v1alpha1.Finalizer })
	_, err = c.setFinalizers(ctx, updated, remaining)
	return err
}

// loaded are Signers whose signer is loaded already.
type loaded struct{ signer *signature.Signer }

// Load implements Signers.
func (l loaded) Load(context.Context) (*signature.Signer, error) { return l.signer, nil }
