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

package environment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	elasticlientset "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
)

// resolverReplicas is the number of resolvers in artifacts/deploy.
const resolverReplicas = 2

// Resolver is a pod of the resolvers' Deployment. No program runs in it.
type Resolver struct {
	// Pod is the name of the pod, in SystemNamespace.
	Pod string
	// Address is one at which there is no server.
	Address string
}

// runResolvers waits for the pods of the resolvers' Deployment, and makes them running and
// the first one ready.
func runResolvers(ctx context.Context, client kubernetes.Interface, node *Node) ([]Resolver, error) {
	var pods *corev1.PodList
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		pods, err = client.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + ResolverName})
		return err == nil && len(pods.Items) == resolverReplicas, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for %d pods of the resolvers' Deployment: %w", resolverReplicas, err)
	}
	resolvers := make([]Resolver, 0, resolverReplicas)
	for i := range pods.Items {
		name := pods.Items[i].Name
		address, err := node.Run(ctx, SystemNamespace, name)
		if err != nil {
			return nil, err
		}
		resolvers = append(resolvers, Resolver{Pod: name, Address: address})
	}
	return resolvers, node.SetReady(ctx, SystemNamespace, resolvers[0].Pod, true)
}

// RunningResolver is a resolver that serves traffic, in this process, behind a pod of
// the resolvers' Service that no Deployment has made.
type RunningResolver struct {
	// Pod is the name of the pod, in SystemNamespace, and Address the one where the
	// proxy ports are.
	Pod, Address string

	node  *Node
	stop  context.CancelFunc
	ended chan error
}

// RunResolver runs a resolver whose access log goes to log, and returns once its pod is
// ready. There may be one at a time. End it with End.
func (e *Environment) RunResolver(ctx context.Context, log io.Writer) (*RunningResolver, error) {
	address := e.Server.Address
	healthPort, err := e.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	config, err := e.AsServiceAccount(ctx, SystemNamespace, ResolverName)
	if err != nil {
		return nil, err
	}
	elasti, elastiErr := elasticlientset.NewForConfig(config)
	kube, kubeErr := kubernetes.NewForConfig(config)
	if err := errors.Join(elastiErr, kubeErr); err != nil {
		return nil, fmt.Errorf("making the clients of a resolver: %w", err)
	}
	health, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(healthPort)))
	if err != nil {
		return nil, fmt.Errorf("opening the health port of a resolver: %w", err)
	}
	running, err := resolver.New(resolver.Options{
		Name: "resolver", Elasti: elasti, Kubernetes: kube, BindAddress: address, HealthListener: health,
		Registerer: prometheus.NewRegistry(), Logger: klog.Background(), AccessLog: accesslog.New(log),
		Limits:   resolver.Limits{HeldBytes: 64 << 20, HeaderBytes: 64 << 10},
		Timeouts: resolver.Timeouts{Header: 10 * time.Second, Idle: time.Minute, Sniff: 100 * time.Millisecond, Greeting: time.Second},
		Drain:    resolver.Drain{ServeGrace: time.Minute, PortLinger: time.Second, Timeout: 10 * time.Second},
	})
	if err != nil {
		return nil, errors.Join(err, health.Close())
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &RunningResolver{Address: address, node: e.Node, stop: stop, ended: make(chan error, 1)}
	go func() { r.ended <- running.Run(serving) }()
	if err := r.join(ctx, e.Kubernetes, health.Addr().String(), int32(healthPort)); err != nil {
		return nil, errors.Join(err, r.End(ctx))
	}
	return r, nil
}

// join makes the pod of a resolver once that is ready.
func (r *RunningResolver) join(ctx context.Context, client kubernetes.Interface, health string, healthPort int32) error {
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+health+"/readyz", nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil
		}
		return response.StatusCode == http.StatusOK, response.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("waiting until the resolver is ready: %w", err)
	}
	pod, err := client.CoreV1().Pods(SystemNamespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: ResolverName + "-", Labels: map[string]string{"app.kubernetes.io/name": ResolverName}},
		Spec: corev1.PodSpec{
			ServiceAccountName: ResolverName, AutomountServiceAccountToken: ptr.To(false),
			// The namespace admits no others.
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: ResolverName, Image: ResolverName,
				Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: healthPort}, {Name: "metrics", ContainerPort: 8081}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating the pod of a resolver: %w", err)
	}
	r.Pod = pod.Name
	if err := r.node.RunAt(ctx, SystemNamespace, r.Pod, r.Address); err != nil {
		return err
	}
	return r.node.SetReady(ctx, SystemNamespace, r.Pod, true)
}

// End ends the resolver as a kubelet does: it is not ready any more, drains, and its
// pod is deleted.
func (r *RunningResolver) End(ctx context.Context) error {
	var notReady, removed error
	if r.Pod != "" {
		notReady = r.node.SetReady(ctx, SystemNamespace, r.Pod, false)
	}
	r.stop()
	ended := <-r.ended
	if r.Pod != "" {
		removed = r.node.Remove(ctx, SystemNamespace, r.Pod)
	}
	return errors.Join(notReady, ended, removed)
}
