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
	}
	target, pods := elastiService.Spec.ScaleTargetRef.Name, labels.SelectorFromSet(service.Spec.Selector)
	return o, errors.Join(
		onChange(o.kubernetes.Apps().V1().Deployments().Informer(), func(before, after *appsv1.Deployment) {
			if after.Name == target {
				o.deploymentChanged(before, after)
			}
		}),
		onChange(o.kubernetes.Core().V1().Pods().Informer(), func(before, after *corev1.Pod) {
			if pods.Matches(labels.Set(after.Labels)) {
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
	case before.Name == "":
		o.add("pod %s is created", after.Name)
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
	case service == o.service && labelsNow["elasti.truefoundry.com/role"] == "resolver":
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
	if before.Status.Mode == after.Status.Mode {
		return
	}
	o.add("ElastiService %s is in mode %s", after.Name, after.Status.Mode)
	if after.Status.Mode == v1alpha1.ModeServe {
		select {
		case o.serving <- struct{}{}:
		default:
		}
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
