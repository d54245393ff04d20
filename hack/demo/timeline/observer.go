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
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/informers/externalversions"
)

// watchSource is the source of the moments that a watch told. Their time is
// the one at which the change arrived here: the objects themselves tell whole
// seconds only.
const watchSource = "watch"

// observer watches the objects of one ElastiService and adds each step of a
// cold start to a timeline.
type observer struct {
	timeline *timeline
	service  string
	private  string

	kubernetes informers.SharedInformerFactory
	elasti     externalversions.SharedInformerFactory
	serving    chan struct{}
	podGone    chan struct{}
	// always is true when the resolvers stay in the path.
	always   bool
	cooldown time.Duration
}

// newObserver reads what belongs to the ElastiService and prepares to watch it.
func newObserver(ctx context.Context, host kubernetes.Interface, elasti versioned.Interface, namespace, name string, into *timeline) (*observer, error) {
	elastiService, err := elasti.ElastiV1alpha1().ElastiServices(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the ElastiService: %w", err)
	}
	service, err := host.CoreV1().Services(namespace).Get(ctx, elastiService.Spec.Service, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading its Service: %w", err)
	}
	o := &observer{
		timeline:   into,
		service:    service.Name,
		private:    elastiService.Status.PrivateService,
		kubernetes: informers.NewSharedInformerFactoryWithOptions(host, 0, informers.WithNamespace(namespace)),
		elasti:     externalversions.NewSharedInformerFactoryWithOptions(elasti, 0, externalversions.WithNamespace(namespace)),
		serving:    make(chan struct{}, 1),
		podGone:    make(chan struct{}, 1),
		always:     elastiService.Spec.Proxy != nil && elastiService.Spec.Proxy.Policy == v1alpha1.ProxyAlways,
	}
	if seconds := elastiService.Spec.CooldownPeriod; seconds != nil {
		o.cooldown = time.Duration(*seconds) * time.Second
	}
	target, pods := elastiService.Spec.ScaleTargetRef.Name, labels.SelectorFromSet(service.Spec.Selector)
	return o, errors.Join(
		onChange(o.kubernetes.Apps().V1().Deployments().Informer(), func(before, after *appsv1.Deployment) {
			if after.Name == target {
				o.deploymentChanged(before, after)
			}
		}),
		onChange(o.kubernetes.Core().V1().Pods().Informer(), func(before, after *corev1.Pod) {
			if pods.Matches(labels.Set(after.Labels)) || pods.Matches(labels.Set(before.Labels)) {
				o.podChanged(before, after)
			}
		}),
		onChange(o.kubernetes.Discovery().V1().EndpointSlices().Informer(), o.sliceChanged),
		onChange(o.elasti.Elasti().V1alpha1().ElastiServices().Informer(), func(before, after *v1alpha1.ElastiService) {
			if after.Name == name {
				o.elastiServiceChanged(before, after)
			}
		}),
	)
}

// run watches until ctx ends. It closes started once every change from then on
// is seen.
func (o *observer) run(ctx context.Context, started chan<- struct{}) {
	o.kubernetes.StartWithContext(ctx)
	o.elasti.StartWithContext(ctx)
	defer o.kubernetes.Shutdown()
	defer o.elasti.Shutdown()
	o.kubernetes.WaitForCacheSyncWithContext(ctx)
	o.elasti.WaitForCacheSyncWithContext(ctx)
	if ctx.Err() == nil {
		close(started)
	}
	<-ctx.Done()
}

// settle waits until the traffic goes where it is to go after a wake, and then,
// if it is to, until the target sleeps and its pod is gone.
func (o *observer) settle(ctx context.Context, untilAsleep bool) error {
	if !o.always {
		if err := await(ctx, o.serving, settleTimeout, "the ElastiService is not in mode serve"); err != nil {
			return err
		}
	}
	if !untilAsleep {
		return nil
	}
	fmt.Printf("no more requests: waiting for the cooldown of %s, and the target to sleep\n", o.cooldown)
	return await(ctx, o.podGone, o.cooldown+asleepTimeout, "the target does not sleep")
}

// await waits for something, and complains when it does not come.
func await(ctx context.Context, what <-chan struct{}, timeout time.Duration, complaint string) error {
	select {
	case <-what:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("%s after %s", complaint, timeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// onChange calls changed for every object that is new, different or gone after
// the informer has started; before is empty for a new one, after for one that
// is gone.
func onChange[T any](informer cache.SharedIndexInformer, changed func(before, after *T)) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, isInInitialList bool) {
			if !isInInitialList {
				changed(new(T), object.(*T))
			}
		},
		UpdateFunc: func(before, after any) { changed(before.(*T), after.(*T)) },
		DeleteFunc: func(object any) {
			if last, ok := object.(*T); ok {
				changed(last, new(T))
			}
		},
	})
	return err
}

func (o *observer) add(format string, arguments ...any) {
	o.timeline.add(time.Now(), watchSource, format, arguments...)
}

func (o *observer) deploymentChanged(before, after *appsv1.Deployment) {
	if before.Spec.Replicas != nil && *before.Spec.Replicas != *after.Spec.Replicas {
		o.add("Deployment %s is scaled from %d to %d", after.Name, *before.Spec.Replicas, *after.Spec.Replicas)
		o.timeline.mark(scaled, time.Now())
	}
}

func (o *observer) podChanged(before, after *corev1.Pod) {
	switch {
	case after.Name == "":
		o.add("pod is gone")
		notify(o.podGone)
		return
	case before.Name == "":
		o.add("pod %s is created", after.Name)
	case before.DeletionTimestamp == nil && after.DeletionTimestamp != nil:
		o.add("pod terminates")
	case before.Spec.NodeName != after.Spec.NodeName:
		o.add("pod is scheduled to %s", after.Spec.NodeName)
	case !containersRun(before) && containersRun(after):
		o.add("pod's containers run, its address is %s", after.Status.PodIP)
	}
	if !podIsReady(before) && podIsReady(after) {
		o.add("pod is ready, says the kubelet")
	}
}

func (o *observer) sliceChanged(before, after *discoveryv1.EndpointSlice) {
	labelsNow := after.Labels
	if after.Name == "" {
		labelsNow = before.Labels
	}
	service := labelsNow[discoveryv1.LabelServiceName]
	switch {
	case service == o.private && len(before.Endpoints) == 0 && len(after.Endpoints) > 0:
		o.add("private Service lists the pod's address")
	case service == o.service && labelsNow[v1alpha1.LabelRole] == v1alpha1.RoleResolver:
		if before.Name == "" {
			o.add("resolver slice is added: new connections go to the resolvers")
		}
		if after.Name == "" {
			o.add("resolver slice is removed: new connections go to the pod")
		}
		return
	}
	if !hasReadyEndpoint(before) && hasReadyEndpoint(after) {
		switch service {
		case o.private:
			o.add("private Service lists the pod as ready")
		case o.service:
			o.add("public Service lists the pod as ready")
		}
	}
}

func (o *observer) elastiServiceChanged(before, after *v1alpha1.ElastiService) {
	for _, reported := range after.Status.Activity {
		if !slices.ContainsFunc(before.Status.Activity, func(known v1alpha1.ResolverActivity) bool { return known.Resolver == reported.Resolver }) {
			o.add("resolver %s reports the traffic for the first time", reported.Resolver)
		}
	}
	if before.Status.SleepRequestedTime == nil && after.Status.SleepRequestedTime != nil {
		o.add("no request for the whole cooldown of %s: sleep is requested", o.cooldown)
	}
	if before.Status.Mode == after.Status.Mode {
		return
	}
	o.add("ElastiService %s is in mode %s", after.Name, after.Status.Mode)
	if after.Status.Mode == v1alpha1.ModeServe {
		notify(o.serving)
	}
}

// notify tells whoever waits for a channel with room for one.
func notify(waiting chan<- struct{}) {
	select {
	case waiting <- struct{}{}:
	default:
	}
}

func containersRun(pod *corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.State.Running == nil })
}

func podIsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}

func hasReadyEndpoint(slice *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
		return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
	})
}
