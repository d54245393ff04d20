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

// Command profile records where elasti-apiserver spends its time on the calls
// that it is there for. The compiler optimises the server by that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlient "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	namespace = "profile"
	// awake is the ElastiService that is watched, changed and woken.
	awake    = "awake"
	watchers = 100
	// perRound is how often a round makes each call on a single object.
	perRound = 20
)

func main() {
	output := flag.String("output", "", "file to write the profile to (required)")
	duration := flag.Duration("duration", time.Minute, "how long to record")
	flag.Parse()
	if *output == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *output, *duration); err != nil {
		fmt.Fprintln(os.Stderr, "profile:", err)
		os.Exit(1)
	}
}

// run starts a control plane, and calls the API for as long as is recorded.
func run(ctx context.Context, output string, duration time.Duration) (err error) {
	control, err := environment.StartForComparing(ctx)
	if err != nil {
		return fmt.Errorf("starting a control plane: %w", err)
	}
	defer func() {
		err = errors.Join(err, control.Stop(context.WithoutCancel(ctx)))
		if err == nil {
			err = control.Remove()
		}
	}()
	if err := createTarget(ctx, control); err != nil {
		return err
	}
	calling, stopCalling := context.WithCancel(ctx)
	defer stopCalling()
	caller := &caller{client: control.Elasti.ElastiV1alpha1().ElastiServices(namespace)}
	called := make(chan error, 1)
	go func() { called <- caller.call(calling) }()
	recordErr := record(ctx, control, output, duration)
	stopCalling()
	return errors.Join(recordErr, <-called)
}

// createTarget creates an ElastiService with a target that asks for a pod, so
// that waking it changes nothing. There is nobody who would make the pod.
func createTarget(ctx context.Context, control *environment.Environment) error {
	if _, err := control.Kubernetes.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a namespace: %w", err)
	}
	labels := map[string]string{"app": awake}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: awake},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}
	if _, err := control.Kubernetes.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the target: %w", err)
	}
	if _, err := control.Elasti.ElastiV1alpha1().ElastiServices(namespace).Create(ctx, elastiService(awake), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the ElastiService: %w", err)
	}
	return nil
}

func elastiService(name string) *v1alpha1.ElastiService {
	return &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ElastiServiceSpec{
			Service:        name,
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		},
	}
}

// record has the server itself record, and writes that to a file.
func record(ctx context.Context, control *environment.Environment, output string, duration time.Duration) error {
	config := rest.CopyConfig(control.Admin)
	config.Host = "https://" + net.JoinHostPort(control.Server.Address, strconv.Itoa(control.Server.Port))
	// It is a process of our own, on this machine.
	config.Insecure, config.CAData, config.CAFile = true, nil, ""
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("making the client that records: %w", err)
	}
	url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", config.Host, int(duration.Seconds()))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("asking for a profile: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("asking for a profile: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("reading the profile: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("asking for a profile: the server answered %s: %s", response.Status, content)
	}
	return os.WriteFile(output, content, 0o600)
}

// caller calls the API of ElastiServices.
type caller struct {
	client  elasticlient.ElastiServiceInterface
	created int
}

// call makes all kinds of calls in turn until ctx ends.
func (c *caller) call(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range watchers {
		events, err := c.client.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: awake}))
		if err != nil {
			return fmt.Errorf("watching: %w", err)
		}
		watching.Go(func() {
			for range events.ResultChan() {
				// What is seen does not matter.
			}
		})
	}
	for {
		if err := c.round(ctx); err != nil {
			if ctx.Err() != nil {
				// It was told to end.
				return nil
			}
			return err
		}
	}
}

// round makes the calls on single objects in equal numbers, and one list.
func (c *caller) round(ctx context.Context) error {
	for range perRound {
		c.created++
		name := fmt.Sprintf("object-%06d", c.created)
		if _, err := c.client.Create(ctx, elastiService(name), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating %s: %w", name, err)
		}
		if _, err := c.client.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("getting %s: %w", name, err)
		}
		if _, err := c.client.Wake(ctx, awake, &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("waking: %w", err)
		}
		mark := fmt.Appendf(nil, `{"metadata":{"labels":{"mark":"mark-%d"}}}`, c.created)
		if _, err := c.client.Patch(ctx, awake, types.MergePatchType, mark, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("patching: %w", err)
		}
	}
	if _, err := c.client.List(ctx, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	return nil
}
