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

package scale

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// stormResolvers is how many resolvers send the wakes, as many as are deployed.
const stormResolvers = 2

// wakeTimeout bounds one call, as it does in a resolver.
const wakeTimeout = 10 * time.Second

// StormResult is what became of a wake of each application.
type StormResult struct {
	// Scaled is how long after the first wake was sent the last target desired
	// a replica.
	Scaled time.Duration
	// Calls is how long each wake took that succeeded.
	Calls []time.Duration
	// Failures are the wakes that failed, and the targets that still desire none.
	Failures []error
}

// Storm has each application woken, spread evenly over a period, by the service
// account and with the calls of resolvers. It returns when each target desires
// a replica, and at the latest when ctx ends.
func (s *Stage) Storm(ctx context.Context, period time.Duration) (StormResult, error) {
	resolvers, err := s.resolverClients(ctx)
	if err != nil {
		return StormResult{}, err
	}
	asleep := &progress{wrong: map[types.NamespacedName]bool{}, done: make(chan struct{})}
	for number := range s.awake {
		asleep.wrong[s.application(number)] = true
	}
	watched, stopWatching := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stopWatching()
	watching.Go(func() { s.followScales(watched, asleep) })

	var result StormResult
	var mu sync.Mutex
	var calls sync.WaitGroup
	began := time.Now()
	for number := range s.awake {
		pause := time.Until(began.Add(period * time.Duration(number) / time.Duration(len(s.awake))))
		if sleep(ctx, pause) != nil {
			break
		}
		calls.Go(func() {
			took, err := s.wake(ctx, resolvers[number%len(resolvers)], number)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				result.Failures = append(result.Failures, err)
				return
			}
			result.Calls = append(result.Calls, took)
		})
	}
	select {
	case <-asleep.done:
		result.Scaled = time.Since(began)
	case <-ctx.Done():
	}
	calls.Wait()
	return result, s.checkScaled(context.WithoutCancel(ctx), &result)
}

// resolverClients returns clients as resolvers have them.
func (s *Stage) resolverClients(ctx context.Context) ([]versioned.Interface, error) {
	identity, err := s.control.AsServiceAccount(ctx, environment.SystemNamespace, environment.ResolverName)
	if err != nil {
		return nil, err
	}
	var clients []versioned.Interface
	for number := range stormResolvers {
		config := rest.AddUserAgent(identity, fmt.Sprintf("storm-resolver-%d", number))
		config.QPS, config.DisableCompression = -1, true
		// Clients that dial in the same way share their connections.
		config.Dial = (&net.Dialer{}).DialContext
		client, err := versioned.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("making a client of ElastiServices: %w", err)
		}
		clients = append(clients, client)
	}
	return clients, nil
}

func (s *Stage) wake(ctx context.Context, client versioned.Interface, number int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	name := s.application(number)
	began := time.Now()
	_, err := client.ElastiV1alpha1().ElastiServices(name.Namespace).Wake(ctx, name.Name, &v1alpha1.WakeRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Spec:       v1alpha1.WakeRequestSpec{Reason: "traffic is held", Pending: 1},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("waking %s, after %s: %w", name, time.Since(began).Round(time.Millisecond), err)
	}
	return time.Since(began), nil
}

// followScales notes which targets desire a replica, until ctx ends.
func (s *Stage) followScales(ctx context.Context, asleep *progress) {
	client := s.control.Kubernetes.AppsV1().Deployments(metav1.NamespaceAll)
	inform(ctx, cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}, s.control.Kubernetes), &appsv1.Deployment{}, func(object any, _ bool) {
		if deployment := object.(*appsv1.Deployment); ptr.Deref(deployment.Spec.Replicas, 1) > 0 {
			asleep.set(cache.MetaObjectToName(deployment).AsNamespacedName(), true)
		}
	})
}

// checkScaled reads each target's scale anew, and adds those that desire no
// replica to the failures.
func (s *Stage) checkScaled(ctx context.Context, result *StormResult) error {
	list, err := s.control.Kubernetes.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing Deployments: %w", err)
	}
	replicas := make(map[types.NamespacedName]int32, len(list.Items))
	for _, deployment := range list.Items {
		replicas[cache.MetaObjectToName(&deployment).AsNamespacedName()] = ptr.Deref(deployment.Spec.Replicas, 1)
	}
	for number := range s.awake {
		if name := s.application(number); replicas[name] == 0 {
			result.Failures = append(result.Failures, fmt.Errorf("the target of %s still desires no replica", name))
		}
	}
	return nil
}
