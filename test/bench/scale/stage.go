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

// Package scale puts many ElastiServices on a control plane without pods, and
// reports when each of them has what it should have.
//
// It knows nothing of resolvers as processes: of these there are only endpoints. Begin with
// Stage.
package scale

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	// manyPerNamespace is how many ElastiServices a namespace has where New does
	// not say.
	manyPerNamespace = 500
	// writers is how many objects are written at a time.
	writers = 32
)

// Stage is a control plane with many applications. Its methods must not be
// called concurrently.
type Stage struct {
	control *environment.Environment
	// awake says of each application whether it has a ready endpoint.
	awake []bool
	// perNamespace is how many of the applications a namespace has.
	perNamespace int
}

// NewAsleep returns a stage for a number of applications that all sleep, in a
// number of namespaces. Nothing is there yet.
func NewAsleep(control *environment.Environment, applications, namespaces int) *Stage {
	return &Stage{control: control, awake: make([]bool, applications), perNamespace: applications / namespaces}
}

// New returns a stage for a number of applications, of which the first half
// sleeps. Nothing is there yet.
func New(control *environment.Environment, applications int) *Stage {
	stage := &Stage{control: control, awake: make([]bool, applications), perNamespace: manyPerNamespace}
	for i := applications / 2; i < applications; i++ {
		stage.awake[i] = true
	}
	return stage
}

// application is the name of an application, and of everything it consists of.
func (s *Stage) application(number int) types.NamespacedName {
	return types.NamespacedName{Namespace: fmt.Sprintf("scale-%03d", number/s.perNamespace), Name: fmt.Sprintf("application-%05d", number)}
}

// Prepare makes everything but the ElastiServices.
func (s *Stage) Prepare(ctx context.Context) error {
	if err := s.createResolvers(ctx); err != nil {
		return err
	}
	for number := 0; number < len(s.awake); number += s.perNamespace {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.application(number).Namespace}}
		if _, err := s.control.Kubernetes.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating a namespace: %w", err)
		}
	}
	return s.forEach(ctx, len(s.awake), s.createApplication)
}

// Create makes the ElastiServices.
func (s *Stage) Create(ctx context.Context) error {
	return s.forEach(ctx, len(s.awake), func(ctx context.Context, number int) error {
		name := s.application(number)
		object := &v1alpha1.ElastiService{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
			Spec: v1alpha1.ElastiServiceSpec{
				Service:        name.Name,
				ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name.Name},
			},
		}
		_, err := s.control.Elasti.ElastiV1alpha1().ElastiServices(name.Namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

// Change puts the last of the applications to sleep and wakes the first, so
// many of each.
func (s *Stage) Change(ctx context.Context, each int) error {
	return s.forEach(ctx, 2*each, func(ctx context.Context, number int) error {
		if number >= each {
			number = len(s.awake) - 1 - number + each
		}
		name := s.application(number)
		s.awake[number] = !s.awake[number]
		scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Spec: autoscalingv1.ScaleSpec{Replicas: s.replicas(number)}}
		_, err := s.control.Kubernetes.AppsV1().Deployments(name.Namespace).UpdateScale(ctx, name.Name, scale, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		if err := s.reportPods(ctx, number); err != nil {
			return err
		}
		if s.awake[number] {
			return s.createEndpoint(ctx, number)
		}
		return s.control.Kubernetes.DiscoveryV1().EndpointSlices(name.Namespace).Delete(ctx, name.Name, metav1.DeleteOptions{})
	})
}

func (s *Stage) replicas(number int) int32 {
	if s.awake[number] {
		return 1
	}
	return 0
}

// createResolvers makes resolvers whose addresses lead nowhere.
func (s *Stage) createResolvers(ctx context.Context) error {
	slice := endpointSlice(types.NamespacedName{Namespace: environment.SystemNamespace, Name: environment.ResolverName}, 0)
	if _, err := s.control.Kubernetes.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the endpoints of the resolvers: %w", err)
	}
	return nil
}

func (s *Stage) createEndpoint(ctx context.Context, number int) error {
	slice := endpointSlice(s.application(number), number+1)
	_, err := s.control.Kubernetes.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
	return err
}

func endpointSlice(service types.NamespacedName, number int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name, Labels: map[string]string{
			discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{environment.NoAddress(uint32(number))}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
	}
}

func (s *Stage) createApplication(ctx context.Context, number int) error {
	name := s.application(number)
	labels := map[string]string{"app.kubernetes.io/name": name.Name}
	meta := metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: labels}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	if _, err := s.control.Kubernetes.CoreV1().Services(name.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(s.replicas(number)),
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "application", Image: "application", Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
				Env: []corev1.EnvVar{{Name: "NAME", Value: name.Name}, {Name: "LEVEL", Value: "info"}},
			}}},
		},
	}}
	if _, err := s.control.Kubernetes.AppsV1().Deployments(name.Namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	if !s.awake[number] {
		return nil
	}
	return errors.Join(s.reportPods(ctx, number), s.createEndpoint(ctx, number))
}

// reportPods has the Deployment of an application report as many ready pods as it
// is to have, as its controller would.
func (s *Stage) reportPods(ctx context.Context, number int) error {
	name, replicas := s.application(number), s.replicas(number)
	patch := fmt.Appendf(nil, `{"status":{"replicas":%[1]d,"readyReplicas":%[1]d,"availableReplicas":%[1]d}}`, replicas)
	_, err := s.control.Kubernetes.AppsV1().Deployments(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// forEach works on applications, many at a time.
func (s *Stage) forEach(ctx context.Context, count int, work func(ctx context.Context, number int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for number := range count {
		group.Go(func() error {
			if err := work(ctx, number); err != nil {
				return fmt.Errorf("application %s: %w", s.application(number), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// progress is what is still wrong. It is safe for concurrent use.
type progress struct {
	mu sync.Mutex
	// wrong are the applications whose mode, or resolver slices, are not right.
	wrong map[types.NamespacedName]bool
	done  chan struct{}
}

func (p *progress) set(name types.NamespacedName, right bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !right {
		p.wrong[name] = true
		return
	}
	delete(p.wrong, name)
	if len(p.wrong) == 0 {
		select {
		case <-p.done:
		default:
			close(p.done)
		}
	}
}

func (p *progress) complaint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.wrong {
		return fmt.Sprintf("%d applications are not in the right mode, such as %s", len(p.wrong), name)
	}
	return "none"
}

// AwaitRight returns when each ElastiService has the mode that follows from its
// endpoints, and each Service the resolver slice that its mode needs.
func (s *Stage) AwaitRight(ctx context.Context) error {
	awake := make(map[types.NamespacedName]bool, len(s.awake))
	modes := &progress{wrong: map[types.NamespacedName]bool{}, done: make(chan struct{})}
	inPath := &progress{wrong: map[types.NamespacedName]bool{}, done: make(chan struct{})}
	for number, isAwake := range s.awake {
		awake[s.application(number)] = isAwake
		modes.wrong[s.application(number)] = true
		if !isAwake {
			inPath.wrong[s.application(number)] = true
		}
	}
	// Of those that are awake, the slices must not be there, which is what is
	// taken for granted until one is seen.
	watched, stopWatching := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stopWatching()
	watching.Go(func() { s.followModes(watched, awake, modes) })
	watching.Go(func() { s.followSlices(watched, awake, inPath) })
	return errors.Join(await(ctx, modes), await(ctx, inPath))
}

func await(ctx context.Context, p *progress) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.New(p.complaint())
	}
}

func (s *Stage) followModes(ctx context.Context, awake map[types.NamespacedName]bool, modes *progress) {
	client := s.control.Elasti.ElastiV1alpha1().ElastiServices(metav1.NamespaceAll)
	right := func(object *v1alpha1.ElastiService) {
		name := cache.MetaObjectToName(object).AsNamespacedName()
		want := v1alpha1.ModeProxy
		if awake[name] {
			want = v1alpha1.ModeServe
		}
		modes.set(name, object.Status.Mode == want)
	}
	inform(ctx, cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}, s.control.Elasti), &v1alpha1.ElastiService{}, func(object any, _ bool) { right(object.(*v1alpha1.ElastiService)) })
}

func (s *Stage) followSlices(ctx context.Context, awake map[types.NamespacedName]bool, inPath *progress) {
	client := s.control.Kubernetes.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	selector := discoveryv1.LabelManagedBy + "=" + v1alpha1.SliceManagedBy
	inform(ctx, cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return client.Watch(ctx, options)
		},
	}, s.control.Kubernetes), &discoveryv1.EndpointSlice{}, func(object any, exists bool) {
		name := v1alpha1.SliceServiceKey(object.(*discoveryv1.EndpointSlice))
		inPath.set(name, exists != awake[name])
	})
}

// inform notes which objects there are and which are not there any more, until ctx
// ends. It lists anew when a watch ends: the server ends those that do not keep up.
func inform(ctx context.Context, source cache.ListerWatcher, example runtime.Object, note func(object any, exists bool)) {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    example,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { note(object, true) },
			UpdateFunc: func(_, object any) { note(object, true) },
			DeleteFunc: func(object any) {
				if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = unknown.Obj
				}
				note(object, false)
			},
		},
	})
	informer.RunWithContext(ctx)
}

// follow passes on the events of a watch until ctx ends.
func follow(ctx context.Context, what string, watcher watch.Interface, err error, note func(watch.Event)) error {
	if err != nil {
		return fmt.Errorf("watching %s: %w", what, err)
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-watcher.ResultChan():
			if !open || event.Type == watch.Error {
				return fmt.Errorf("the watch of %s ended early: %v", what, event.Object)
			}
			note(event)
		}
	}
}
