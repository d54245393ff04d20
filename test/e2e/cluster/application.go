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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// applicationPort is where the application listens in its pod.
	applicationPort = 8080

	// kube-proxy takes a second or two to program a new ClusterIP. Until then a
	// connection attempt gets no response.
	reachableTimeout        = 30 * time.Second
	reachableRequestTimeout = 2 * time.Second
	reachableInterval       = 50 * time.Millisecond

	// healthCheckAgent begins the User-Agent of what never wakes a target.
	healthCheckAgent = "kube-probe/e2e"
)

// ApplicationOptions say what an application is like. The zero value is an
// application of one replica that starts at once and sleeps.
type ApplicationOptions struct {
	// Name of the Deployment, the Service and the ElastiService. Defaults to "web".
	Name string
	// Replicas that the Deployment starts with.
	Replicas int32
	// Arguments of the application's command line.
	Arguments []string
	// ReadinessPeriod is the period of the readiness probe, in whole seconds.
	// Defaults to one second.
	ReadinessPeriod time.Duration
	// Linger is how long a terminating pod still serves, in whole seconds. A pod
	// that does not linger ends before every kube-proxy has removed it.
	Linger time.Duration
	// ServicePorts of the Service. Defaults to port 80, named http.
	ServicePorts []corev1.ServicePort
	// Container changes the container of the Deployment before it is created.
	Container func(*corev1.Container)
	// Deployment changes the Deployment before it is created.
	Deployment func(*appsv1.DeploymentSpec)
	// Service changes the Service before it is created.
	Service func(*corev1.ServiceSpec)
	// Spec changes the ElastiService before it is created.
	Spec func(*v1alpha1.ElastiServiceSpec)
}

// Application is a Deployment with a Service and an ElastiService.
type Application struct {
	cluster *Cluster
	options ApplicationOptions

	// Namespace and Name of the Deployment, the Service and the ElastiService.
	Namespace, Name string
	// Address is the ClusterIP of the Service; empty until that is created.
	Address string
}

// NewApplication describes an application; nothing is created.
func (c *Cluster) NewApplication(namespace string, options ApplicationOptions) *Application {
	if options.Name == "" {
		options.Name = "web"
	}
	if options.ReadinessPeriod == 0 {
		options.ReadinessPeriod = time.Second
	}
	if options.ServicePorts == nil {
		options.ServicePorts = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}
	}
	return &Application{cluster: c, options: options, Namespace: namespace, Name: options.Name}
}

// Create creates the Deployment, the Service and the ElastiService.
func (a *Application) Create(ctx context.Context) error {
	return errors.Join(a.CreateDeployment(ctx), a.CreateService(ctx), a.CreateElastiService(ctx))
}

// CreateDeployment creates the Deployment alone.
func (a *Application) CreateDeployment(ctx context.Context) error {
	_, err := a.cluster.Host.AppsV1().Deployments(a.Namespace).Create(ctx, a.deployment(), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating Deployment %s: %w", a.Name, err)
	}
	return nil
}

// CreateService creates the Service alone and sets Address.
func (a *Application) CreateService(ctx context.Context) error {
	desired := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name},
		Spec:       corev1.ServiceSpec{Selector: a.labels(), Ports: a.options.ServicePorts},
	}
	if a.options.Service != nil {
		a.options.Service(&desired.Spec)
	}
	service, err := a.cluster.Host.CoreV1().Services(a.Namespace).Create(ctx, desired, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating Service %s: %w", a.Name, err)
	}
	a.Address = service.Spec.ClusterIP
	return nil
}

// CreateElastiService creates the ElastiService alone.
func (a *Application) CreateElastiService(ctx context.Context) error {
	elastiService := &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name},
		Spec: v1alpha1.ElastiServiceSpec{
			Service:        a.Name,
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: a.Name},
		},
	}
	if a.options.Spec != nil {
		a.options.Spec(&elastiService.Spec)
	}
	_, err := a.cluster.Elasti.ElastiV1alpha1().ElastiServices(a.Namespace).Create(ctx, elastiService, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating ElastiService %s: %w", a.Name, err)
	}
	return nil
}

// URL is where clients outside of the cluster reach a path of the application.
func (a *Application) URL(path string) string { return "http://" + a.Address + path }

// Scale sets the replicas of the Deployment, as a user or an autoscaler would.
func (a *Application) Scale(ctx context.Context, replicas int32) error {
	deployments := a.cluster.Host.AppsV1().Deployments(a.Namespace)
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := deployments.Patch(ctx, a.Name, "application/merge-patch+json", patch, metav1.PatchOptions{}, "scale"); err != nil {
		return fmt.Errorf("scaling Deployment %s to %d: %w", a.Name, replicas, err)
	}
	return nil
}

// AwaitMode waits until the ElastiService is in the mode.
func (a *Application) AwaitMode(ctx context.Context, mode v1alpha1.Mode) error {
	_, err := a.cluster.AwaitElastiService(ctx, a.Namespace, a.Name, "mode is "+string(mode), func(elastiService *v1alpha1.ElastiService) bool {
		return elastiService.Status.Mode == mode
	})
	return err
}

// AwaitReported waits until the status of the ElastiService says that the target is
// scaled up, or that it is at zero.
func (a *Application) AwaitReported(ctx context.Context, scaled bool) error {
	what := "the status says that the target is at zero"
	if scaled {
		what = "the status says that the target is scaled up"
	}
	_, err := a.cluster.AwaitElastiService(ctx, a.Namespace, a.Name, what, func(elastiService *v1alpha1.ElastiService) bool {
		return elastiService.Status.Replicas > 0 == scaled
	})
	return err
}

// AwaitCondition waits until the ElastiService has a condition with the status.
func (a *Application) AwaitCondition(ctx context.Context, conditionType string, status metav1.ConditionStatus) (*metav1.Condition, error) {
	var last *metav1.Condition
	what := fmt.Sprintf("condition %s is %s", conditionType, status)
	_, err := a.cluster.AwaitElastiService(ctx, a.Namespace, a.Name, what, func(elastiService *v1alpha1.ElastiService) bool {
		for _, condition := range elastiService.Status.Conditions {
			if condition.Type == conditionType && condition.Status == status {
				last = &condition
				return true
			}
		}
		return false
	})
	return last, err
}

// AwaitResolverSlice waits until resolvers are endpoints of the Service, or
// until none is.
func (a *Application) AwaitResolverSlice(ctx context.Context, present bool) error {
	what := "the Service has no resolver slice"
	if present {
		what = "the Service has a resolver slice with an endpoint"
	}
	_, err := a.cluster.AwaitEndpointSlices(ctx, a.Namespace, a.Name, what, func(found []*discoveryv1.EndpointSlice) bool {
		for _, slice := range found {
			if IsResolverSlice(slice) && (len(slice.Endpoints) > 0 || !present) {
				return present
			}
		}
		return !present
	})
	return err
}

// AwaitAsleep waits until new connections go to the resolvers and no pod is left.
func (a *Application) AwaitAsleep(ctx context.Context) error {
	if err := a.AwaitMode(ctx, v1alpha1.ModeProxy); err != nil {
		return err
	}
	_, err := a.AwaitPods(ctx, "every pod is deleted", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
	return err
}

// AwaitPods waits until the pods of the application fulfill the condition.
func (a *Application) AwaitPods(ctx context.Context, what string, condition func([]*corev1.Pod) bool) ([]*corev1.Pod, error) {
	return a.cluster.AwaitPods(ctx, a.Namespace, "app="+a.Name, what, condition)
}

// AwaitReachable waits until requests to the first port of the Service get a response
// from a pod of the application or from a resolver. It sends health checks, which
// neither wake the target nor count as use.
func (a *Application) AwaitReachable(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, reachableInterval, reachableTimeout, true, func(ctx context.Context) (bool, error) {
		last = a.checkReachable(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until application %s or a resolver responds at %s: %w: %w", a.Name, a.Address, err, last)
	}
	return nil
}

func (a *Application) checkReachable(ctx context.Context) error {
	url := "http://" + net.JoinHostPort(a.Address, strconv.Itoa(int(a.options.ServicePorts[0].Port))) + "/"
	ctx, cancel := context.WithTimeout(ctx, reachableRequestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", healthCheckAgent)
	response, err := Do(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, request)
	if err != nil {
		return err
	}
	// These are the responses of a resolver that knows the Service.
	switch response.Header.Get(ResponseHeader) {
	case "Asleep", "ProbeResponse":
		return nil
	}
	return response.FromApplication(a.Name)
}

// Sleep scales the Deployment to zero by hand and waits until it is asleep.
func (a *Application) Sleep(ctx context.Context) error {
	if err := a.Scale(ctx, 0); err != nil {
		return err
	}
	return a.AwaitAsleep(ctx)
}

// Replicas reads spec.replicas of the Deployment.
func (a *Application) Replicas(ctx context.Context) (int32, error) {
	deployment, err := a.cluster.Host.AppsV1().Deployments(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading Deployment %s: %w", a.Name, err)
	}
	return ptr.Deref(deployment.Spec.Replicas, 1), nil
}

// DeleteElastiService deletes the ElastiService; it may go on existing until
// its finalizer is done.
func (a *Application) DeleteElastiService(ctx context.Context) error {
	err := a.cluster.Elasti.ElastiV1alpha1().ElastiServices(a.Namespace).Delete(ctx, a.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ElastiService %s: %w", a.Name, err)
	}
	return nil
}

func (a *Application) labels() map[string]string { return map[string]string{"app": a.Name} }

func (a *Application) deployment() *appsv1.Deployment {
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(a.options.Replicas),
			Selector: &metav1.LabelSelector{MatchLabels: a.labels()},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: a.labels()},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken:  ptr.To(false),
					TerminationGracePeriodSeconds: ptr.To(int64(5 + a.options.Linger/time.Second)),
					Containers: []corev1.Container{{
						Name:            "application",
						Image:           a.cluster.image,
						ImagePullPolicy: corev1.PullIfNotPresent,
						Args:            a.options.Arguments,
						Ports:           []corev1.ContainerPort{{Name: "http", ContainerPort: applicationPort}},
						Lifecycle:       a.lifecycle(),
						// Without a share of its own it may not get to run on a busy machine.
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
							corev1.ResourceCPU: resource.MustParse("100m"),
						}},
						ReadinessProbe: &corev1.Probe{
							ProbeHandler: corev1.ProbeHandler{
								HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")},
							},
							PeriodSeconds: int32(a.options.ReadinessPeriod / time.Second),
						},
					}},
				},
			},
		},
	}
	if a.options.Container != nil {
		a.options.Container(&deployment.Spec.Template.Spec.Containers[0])
	}
	if a.options.Deployment != nil {
		a.options.Deployment(&deployment.Spec)
	}
	return deployment
}

// OneOfMany sets resource requests of a container that are so small that dozens of
// pods, including terminating ones, fit on a node of two processors.
func OneOfMany(container *corev1.Container) {
	container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")}
}

func (a *Application) lifecycle() *corev1.Lifecycle {
	if a.options.Linger == 0 {
		return nil
	}
	return &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
		Sleep: &corev1.SleepAction{Seconds: int64(a.options.Linger / time.Second)},
	}}
}
