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

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// watchSource is the source of the moments that a watch reported. Their time is
// the one at which the change arrived here: the objects themselves have whole
// seconds only.
const watchSource = "watch"

// observer watches the objects of one ElastiService, as the end-to-end tests do, and
// says what each change means for a cold start.
type observer struct {
	*cluster.Observer

	name, target     string
	service, private string
	// always is true when the resolvers stay in the path.
	always   bool
	cooldown time.Duration
}

// newObserver reads what belongs to the ElastiService and prepares to watch it.
func newObserver(ctx context.Context, host kubernetes.Interface, elasti versioned.Interface, namespace, name string) (*observer, error) {
	elastiService, err := elasti.ElastiV1alpha1().ElastiServices(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the ElastiService: %w", err)
	}
	service, err := host.CoreV1().Services(namespace).Get(ctx, elastiService.Spec.Service, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading its Service: %w", err)
	}
	watched, err := (&cluster.Cluster{Host: host, Elasti: elasti}).NewObserver(namespace)
	if err != nil {
		return nil, fmt.Errorf("watching the namespace: %w", err)
	}
	if err := watched.IncludePods(labels.SelectorFromSet(service.Spec.Selector)); err != nil {
		return nil, fmt.Errorf("watching its pods: %w", err)
	}
	o := &observer{
		Observer: watched,
		name:     name,
		target:   elastiService.Spec.ScaleTargetRef.Name,
		service:  service.Name,
		private:  elastiService.Status.PrivateService,
		always:   elastiService.Spec.Proxy != nil && elastiService.Spec.Proxy.Policy == v1alpha1.ProxyAlways,
	}
	if seconds := elastiService.Spec.CooldownPeriod; seconds != nil {
		o.cooldown = time.Duration(*seconds) * time.Second
	}
	return o, nil
}

// awaitSleep waits until the traffic arrives where it is to after a wake, and then,
// if it is to, until the target sleeps and its pod is deleted.
func (o *observer) awaitSleep(ctx context.Context, start time.Time, untilAsleep bool) error {
	if !o.always {
		if err := o.await(ctx, start, cluster.ModeChanged, o.name, string(v1alpha1.ModeServe), serveTimeout, "the ElastiService is not in mode serve"); err != nil {
			return err
		}
	}
	if !untilAsleep {
		return nil
	}
	fmt.Printf("no more requests: waiting for the cooldown of %s, and the target to sleep\n", o.cooldown)
	return o.await(ctx, start, cluster.PodDeleted, "", "", o.cooldown+asleepTimeout, "the target does not sleep")
}

// await waits for a change, and says what is wrong when it does not come in time.
func (o *observer) await(ctx context.Context, start time.Time, change cluster.Change, name, detail string, timeout time.Duration, wrong string) error {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := o.Await(bounded, start, change, name, detail)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s after %s", wrong, timeout)
	}
	return err
}

// addMoments adds what was observed since start.
func (o *observer) addMoments(start time.Time, into *timeline) {
	for _, moment := range o.Since(start) {
		if moment.Change == cluster.Scaled && moment.Name == o.target {
			into.mark(scaled, moment.At)
		}
		if what := o.describe(moment); what != "" {
			into.add(moment.At, watchSource, "%s", what)
		}
	}
}

// describe returns what a change means for the ElastiService. It is empty for changes
// of others, and for those that mean nothing new.
func (o *observer) describe(moment cluster.Moment) string {
	switch {
	case moment.Change == cluster.Scaled && moment.Name == o.target:
		return fmt.Sprintf("Deployment %s is scaled to %s", moment.Name, moment.Detail)
	case moment.Name == o.name && moment.Change == cluster.ModeChanged:
		return fmt.Sprintf("ElastiService %s is in mode %s", moment.Name, moment.Detail)
	case moment.Name == o.name && moment.Change == cluster.SleepRequested:
		return fmt.Sprintf("no request for the whole cooldown of %s: sleep is requested", o.cooldown)
	case moment.Name == o.name && moment.Change == cluster.ActivityReported:
		return fmt.Sprintf("resolver %s reports the traffic for the first time", moment.Detail)
	case moment.Name == o.private:
		return describeEndpoints("private", moment)
	case moment.Name == o.service:
		return describeEndpoints("public", moment)
	}
	return describePod(moment)
}

func describeEndpoints(which string, moment cluster.Moment) string {
	switch moment.Change {
	case cluster.EndpointListed:
		return which + " Service lists the pod's address"
	case cluster.EndpointReady:
		return which + " Service lists the pod as ready"
	case cluster.ResolversAdded:
		return "resolver slice is added: new connections reach the resolvers"
	case cluster.ResolversRemoved:
		return "resolver slice is removed: new connections reach the pod"
	}
	return ""
}

func describePod(moment cluster.Moment) string {
	switch moment.Change {
	case cluster.PodCreated:
		return fmt.Sprintf("pod %s is created", moment.Name)
	case cluster.PodScheduled:
		return "pod is scheduled to " + moment.Detail
	case cluster.PodRunning:
		return "pod's containers run, its address is " + moment.Detail
	case cluster.PodReady:
		return "pod is ready, as the kubelet reports"
	case cluster.PodTerminating:
		return "pod terminates"
	case cluster.PodDeleted:
		return "pod is deleted"
	}
	return ""
}
