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

package install

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	requestsPerSecond = 10
	requestTimeout    = time.Minute
	// maxRequests bounds the requests to one application.
	maxRequests = int(testTimeout/time.Second) * requestsPerSecond
)

// applications are what the product is at work for.
type applications struct {
	// slow takes so long to start that its first requests are held while pods of the
	// product are replaced.
	slow *cluster.Application
	// proxied has resolvers in the path of its traffic also while it is awake.
	proxied *cluster.Application
	// repeated sleeps and is woken in turns.
	repeated *cluster.Application
}

func (a *applications) all() []*cluster.Application {
	return []*cluster.Application{a.slow, a.proxied, a.repeated}
}

// sleeping are those that sleep when no requests arrive.
func (a *applications) sleeping() []*cluster.Application {
	return []*cluster.Application{a.slow, a.repeated}
}

// createApplications creates the applications, which are awake, without ElastiServices.
func (i *installation) createApplications() {
	i.Helper()
	i.applications = applications{
		slow: i.NewApplication(i.namespace, cluster.ApplicationOptions{Name: "slow", Replicas: 1, Arguments: []string{"-start-delay=10s"}}),
		proxied: i.NewApplication(i.namespace, cluster.ApplicationOptions{Name: "proxied", Replicas: 1, Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
		}}),
		repeated: i.NewApplication(i.namespace, cluster.ApplicationOptions{Name: "repeated", Replicas: 1}),
	}
	for _, app := range i.applications.all() {
		i.check(app.CreateDeployment(i.ctx))
		i.check(app.CreateService(i.ctx))
	}
}

// createElastiServices has the product manage the applications.
func (i *installation) createElastiServices() {
	i.Helper()
	for _, app := range i.applications.all() {
		i.check(app.CreateElastiService(i.ctx))
	}
	i.check(i.applications.proxied.AwaitMode(i.ctx, v1alpha1.ModeProxy))
	i.check(i.applications.proxied.AwaitResolverSlice(i.ctx, true))
	i.check(i.applications.proxied.AwaitReachable(i.ctx))
}

// sleep puts an application to sleep, and waits until resolvers are in its path.
func (i *installation) sleep(ctx context.Context, app *cluster.Application) error {
	if err := app.Sleep(ctx); err != nil {
		return err
	}
	if err := app.AwaitResolverSlice(ctx, true); err != nil {
		return err
	}
	return app.AwaitReachable(ctx)
}

// sleepAll puts all applications to sleep that do.
func (i *installation) sleepAll() {
	i.Helper()
	for _, app := range i.applications.sleeping() {
		i.check(i.sleep(i.ctx, app))
	}
}

// uids returns the UIDs of the ElastiServices of the applications, by their names.
func (i *installation) uids() map[string]types.UID {
	i.Helper()
	list, err := i.Elasti.ElastiV1alpha1().ElastiServices(i.namespace).List(i.ctx, metav1.ListOptions{})
	i.check(err)
	uids := map[string]types.UID{}
	for _, item := range list.Items {
		uids[item.Name] = item.UID
	}
	return uids
}

// checkNoRequestFails carries out a change that replaces all pods of the product, while
// requests arrive from before it until the last of the previous pods has ended.
func (i *installation) checkNoRequestFails(change func() error) {
	i.Helper()
	i.sleepAll()
	previous := i.systemPods()
	running, stop := context.WithCancel(i.ctx)
	var senders sync.WaitGroup
	defer func() { stop(); senders.Wait() }()
	steady := []*cluster.Traffic{}
	for _, app := range []*cluster.Application{i.applications.slow, i.applications.proxied} {
		traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: requestsPerSecond, Limit: maxRequests, Timeout: requestTimeout}
		steady = append(steady, traffic)
		senders.Go(func() { traffic.Run(running) })
	}
	var wakes int
	var failure error
	senders.Go(func() { wakes, failure = i.wakeAgainAndAgain(running, i.applications.repeated) })
	slow := i.applications.slow
	_, err := i.AwaitDeployment(i.ctx, slow.Namespace, slow.Name, "it is woken", func(deployment *appsv1.Deployment) bool {
		return ptr.Deref(deployment.Spec.Replicas, 1) > 0
	})
	i.check(err)

	i.check(change())
	i.awaitReplaced(previous)
	stop()
	senders.Wait()

	for _, traffic := range steady {
		total, failed, failures := traffic.Result()
		i.Logf("%d requests to %s, %d failed", total, traffic.Application.Name, failed)
		if total == 0 || failed > 0 {
			i.Errorf("of %d requests to %s, %d failed: %v", total, traffic.Application.Name, failed, failures)
		}
	}
	i.Logf("%s was woken %d times", i.applications.repeated.Name, wakes)
	if wakes == 0 || failure != nil {
		i.Errorf("%s was woken %d times: %v", i.applications.repeated.Name, wakes, failure)
	}
}

// wakeAgainAndAgain wakes a sleeping application with a request and puts it to sleep, in
// turns, until running ends or one of them fails.
func (i *installation) wakeAgainAndAgain(running context.Context, app *cluster.Application) (wakes int, err error) {
	for running.Err() == nil {
		if err := i.request(app); err != nil {
			return wakes, err
		}
		wakes++
		if err := i.sleep(i.ctx, app); err != nil {
			return wakes, err
		}
	}
	return wakes, nil
}

// request sends one request to an application, and returns an error unless it responds.
func (i *installation) request(app *cluster.Application) error {
	ctx, cancel := context.WithTimeout(i.ctx, requestTimeout)
	defer cancel()
	response, err := cluster.Get(ctx, app.URL("/"))
	if err != nil {
		return err
	}
	return response.FromApplication(app.Name)
}

// systemPods returns the names of the pods of both components.
func (i *installation) systemPods() sets.Set[string] {
	i.Helper()
	names := sets.New[string]()
	for _, selector := range []string{cluster.APIServerSelector, cluster.ResolverSelector} {
		pods, err := i.SystemPods(i.ctx, selector)
		i.check(err)
		for _, pod := range pods {
			names.Insert(pod.Name)
		}
	}
	return names
}

// awaitReplaced waits until both components have new pods alone, all ready.
func (i *installation) awaitReplaced(previous sets.Set[string]) {
	i.Helper()
	for _, selector := range []string{cluster.APIServerSelector, cluster.ResolverSelector} {
		_, err := i.AwaitPods(i.ctx, cluster.SystemNamespace, selector, "all pods are new and ready", func(pods []*corev1.Pod) bool {
			for _, pod := range pods {
				if previous.Has(pod.Name) || pod.DeletionTimestamp != nil || !cluster.PodIsReady(pod) {
					return false
				}
			}
			return len(pods) > 0
		})
		i.check(err)
	}
	i.awaitServing()
}

// checkAwake expects that all applications are awake, and as they were without the product.
func (i *installation) checkAwake() {
	i.Helper()
	for _, app := range i.applications.all() {
		_, err := i.AwaitDeployment(i.ctx, app.Namespace, app.Name, "it is awake", func(deployment *appsv1.Deployment) bool {
			return ptr.Deref(deployment.Spec.Replicas, 1) == 1 && deployment.Status.AvailableReplicas == 1
		})
		i.check(err)
		i.check(app.AwaitResolverSlice(i.ctx, false))
		i.check(app.AwaitReachable(i.ctx))
		if err := i.request(app); err != nil {
			i.Errorf("%s does not respond: %v", app.Name, err)
		}
	}
	_, err := i.AwaitServices(i.ctx, i.namespace, "only the Services of the applications are there", func(found []*corev1.Service) bool {
		return len(found) == len(i.applications.all())
	})
	i.check(err)
}

// checkAtWork expects that ElastiServices have effect: a sleeping application is woken.
func (i *installation) checkAtWork() {
	i.Helper()
	app := i.applications.repeated
	i.check(i.sleep(i.ctx, app))
	if err := i.request(app); err != nil {
		i.Error(fmt.Errorf("waking %s: %w", app.Name, err))
	}
}
