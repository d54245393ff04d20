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

// Command soak runs applications with and without traffic for a while, on the cluster
// of KUBECONFIG, and ends parts of the system at random: Prometheus, KEDA, a
// resolver, the API server. It fails when a target sleeps while it has traffic,
// or when one is still awake long after its traffic has ended.
//
// It knows no more of the product than a user could see. Begin with main.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
	"github.com/truefoundry/elasti-apiserver/test/e2e/programs"
)

const (
	serverDeployment = "elasti-apiserver"
	// pollingInterval of the API server during the soak.
	pollingInterval = 2 * time.Second
	// cooldownSeconds of the applications.
	cooldownSeconds = 5
	// requestsPerSecond of an application with traffic.
	requestsPerSecond = 5
	requestTimeout    = time.Minute

	// The pauses between two restarts.
	shortestPause, longestPause = 10 * time.Second, 25 * time.Second
	pollInterval                = 250 * time.Millisecond
	// settleTimeout is how long it may take from the last restart until every
	// target without traffic sleeps: a minute in which Prometheus must have
	// been up, a cooldown and a scale-down, and the restarts that were under way.
	settleTimeout  = 5 * time.Minute
	setUpTimeout   = 3 * time.Minute
	cleanUpTimeout = 3 * time.Minute

	// The applications that KEDA scales as well, which wants a replica of each.
	busyScaled, quietScaled = "busy-scaled", "quiet-scaled"
)

func main() {
	duration := flag.Duration("for", 10*time.Minute, "how long parts of the system are ended at random")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of what is random")
	prometheus := flag.String("prometheus", "_output/tools/bin/prometheus", "the Prometheus server's program")
	keda := flag.String("keda", "_output/tools/bin/keda", "the program of KEDA's operator")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	fmt.Printf("soak for %s, seed %d\n", *duration, *seed)
	if err := run(ctx, *duration, rand.New(rand.NewPCG(*seed, 0)), *prometheus, *keda); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, duration time.Duration, random *rand.Rand, prometheusPath, kedaPath string) (err error) {
	connected, err := cluster.Connect(ctx)
	if err != nil {
		return err
	}
	// after does something when everything that comes later is done.
	after := func(what func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
		defer cancel()
		err = errors.Join(err, what(ctx))
	}
	restore, err := setPollingInterval(ctx, connected)
	defer func() { err = errors.Join(err, restore()) }()
	if err != nil {
		return err
	}
	namespace, err := connected.CreateNamespace(ctx, "soak")
	if err != nil {
		return err
	}
	defer after(func(ctx context.Context) error {
		return errors.Join(connected.DeleteNamespace(ctx, namespace), connected.AwaitNamespaceDeleted(ctx, namespace))
	})
	directory, err := os.MkdirTemp("", "elasti-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	address, err := connected.NodeAddress(ctx)
	if err != nil {
		return err
	}
	traffic := newTrafficMetrics()
	defer traffic.close()
	prometheus, err := programs.NewPrometheus(prometheusPath, address, directory,
		fmt.Sprintf("- job_name: soak\n  static_configs:\n  - targets: [%q]\n", traffic.address()))
	if err != nil {
		return err
	}
	if err := prometheus.Start(); err != nil {
		return err
	}
	defer prometheus.Kill()
	remove, err := connected.InstallKEDADefinitions(ctx)
	if remove != nil {
		defer after(remove)
	}
	if err != nil {
		return err
	}
	keda, err := programs.NewKEDA(kedaPath, connected.Kubeconfig, namespace, directory)
	if err != nil {
		return err
	}
	if err := keda.Start(); err != nil {
		return err
	}
	defer after(func(ctx context.Context) error {
		if keda.Kill(); err != nil {
			fmt.Println("KEDA:", keda.Log())
		}
		return connected.ReleaseScaledObjects(ctx, namespace)
	})
	s := &soak{Cluster: connected, random: random, prometheus: prometheus, keda: keda, traffic: traffic}
	for _, name := range []string{"busy", busyScaled, "quiet", quietScaled} {
		if err := s.create(ctx, namespace, name, "http://"+prometheus.Address); err != nil {
			return err
		}
	}
	return s.run(ctx, duration)
}

// soak is one run.
type soak struct {
	*cluster.Cluster
	random     *rand.Rand
	prometheus *programs.Prometheus
	keda       *programs.KEDA
	traffic    *trafficMetrics
	// applications are in the order of their names: first those with traffic.
	applications []*cluster.Application
}

func (s *soak) create(ctx context.Context, namespace, name, server string) error {
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	scaled := name == busyScaled || name == quietScaled
	metadata := fmt.Appendf(nil, `{"query":%q,"threshold":0.1,"serverAddress":%q,"uptimeFilter":%q}`,
		fmt.Sprintf(`sum(rate(soak_requests_total{application=%q}[10s])) or vector(0)`, name), server, `job="soak"`)
	application := s.NewApplication(namespace, cluster.ApplicationOptions{
		Name: name, Replicas: 1, Linger: 3 * time.Second,
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.CooldownPeriod = ptr.To[int32](cooldownSeconds)
			spec.Triggers = []v1alpha1.ScaleTrigger{{Type: "prometheus", Metadata: &runtime.RawExtension{Raw: metadata}}}
			if scaled {
				spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: name}
			}
		},
	})
	if err := application.Create(ctx); err != nil {
		return err
	}
	if scaled {
		if err := application.CreateScaledObject(ctx, 1); err != nil {
			return err
		}
	}
	s.applications = append(s.applications, application)
	return application.AwaitReachable(ctx)
}

func (s *soak) busy() []*cluster.Application  { return s.applications[:2] }
func (s *soak) quiet() []*cluster.Application { return s.applications[2:] }

func (s *soak) run(ctx context.Context, duration time.Duration) error {
	flow, stopTraffic := context.WithCancel(ctx)
	var flowing sync.WaitGroup
	defer flowing.Wait()
	defer stopTraffic()
	for _, application := range s.busy() {
		sent := &cluster.Traffic{Application: application, Path: "/", PerSecond: requestsPerSecond, Limit: 1 << 20, Timeout: requestTimeout}
		s.traffic.add(application.Name, sent)
		flowing.Go(func() { sent.Run(flow) })
	}
	if err := s.awaitReplicas(ctx, s.quiet(), 0); err != nil {
		return fmt.Errorf("before the first restart: %w", err)
	}
	fmt.Println("the applications without traffic sleep, the restarts begin")

	watched, stopWatching := context.WithCancel(ctx)
	violations := make(chan error, 1)
	go func() { violations <- s.watchBusy(watched) }()
	err := s.disturb(ctx, duration)
	if err == nil {
		err = s.awaitReplicas(ctx, s.quiet(), 0)
	}
	stopWatching()
	if err = errors.Join(err, <-violations); err != nil {
		return err
	}
	for _, application := range s.busy() {
		total, failed, failures := s.traffic.result(application.Name)
		fmt.Printf("%s: %d requests, %d without the application's response %v\n", application.Name, total, failed, failures)
		if total == 0 {
			return fmt.Errorf("%s had no traffic", application.Name)
		}
	}
	stopTraffic()
	flowing.Wait()
	if err := s.awaitReplicas(ctx, s.applications, 0); err != nil {
		return fmt.Errorf("after the end of all traffic: %w", err)
	}
	fmt.Println("every application sleeps after the end of its traffic")
	return nil
}

// disturb ends parts of the system at random, and visits the applications that
// have no traffic now and then, so that they wake.
func (s *soak) disturb(ctx context.Context, duration time.Duration) error {
	counts := map[string]int{}
	defer func() { fmt.Println("restarts and visits:", counts) }()
	for end := time.Now().Add(duration); time.Now().Before(end); {
		part, restart := s.choose()
		counts[part]++
		fmt.Printf("%s %s\n", time.Now().Format(time.TimeOnly), part)
		if err := restart(ctx); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		pause := shortestPause + time.Duration(s.random.Int64N(int64(longestPause-shortestPause)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}

func (s *soak) choose() (string, func(context.Context) error) {
	quiet := s.quiet()[s.random.IntN(len(s.quiet()))]
	lost := s.random.IntN(2) == 0
	actions := []struct {
		name string
		do   func(context.Context) error
	}{
		{"prometheus", func(context.Context) error { return s.prometheus.Restart(lost) }},
		{"keda", func(context.Context) error {
			s.keda.Kill()
			return s.keda.Start()
		}},
		{"resolver", func(ctx context.Context) error { return s.deletePod(ctx, cluster.ResolverSelector) }},
		{"apiserver", func(ctx context.Context) error { return s.deletePod(ctx, cluster.APIServerSelector) }},
		{"visit", func(ctx context.Context) error { return s.visit(ctx, quiet) }},
	}
	chosen := actions[s.random.IntN(len(actions))]
	return chosen.name, chosen.do
}

func (s *soak) deletePod(ctx context.Context, selector string) error {
	pods, err := s.SystemPods(ctx, selector)
	if err != nil || len(pods) == 0 {
		return err
	}
	pod := pods[s.random.IntN(len(pods))]
	return s.Host.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
}

// visit sends one request, which wakes the application if it sleeps. It may
// come while the API server restarts, and is repeated until it succeeds.
func (s *soak) visit(ctx context.Context, application *cluster.Application) error {
	return wait.PollUntilContextTimeout(ctx, time.Second, setUpTimeout, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		response, err := cluster.Get(ctx, application.URL("/"))
		return err == nil && response.FromApplication(application.Name) == nil, nil
	})
}

// watchBusy returns an error as soon as an application that has traffic is
// desired to have no replicas.
func (s *soak) watchBusy(ctx context.Context) error {
	for {
		for _, application := range s.busy() {
			replicas, err := application.Replicas(ctx)
			if err == nil && replicas == 0 {
				return fmt.Errorf("%s was put to sleep while it had traffic, at %s", application.Name, time.Now().Format(time.TimeOnly))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollInterval):
		}
	}
}

// awaitReplicas waits until the applications have a desired number of replicas.
func (s *soak) awaitReplicas(ctx context.Context, applications []*cluster.Application, want int32) error {
	var waiting []string
	err := wait.PollUntilContextTimeout(ctx, time.Second, settleTimeout, true, func(ctx context.Context) (bool, error) {
		waiting = nil
		for _, application := range applications {
			if replicas, err := application.Replicas(ctx); err != nil || replicas != want {
				waiting = append(waiting, application.Name)
			}
		}
		return len(waiting) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%v did not get to %d replicas: %w", waiting, want, err)
	}
	return nil
}

// setPollingInterval makes the API server evaluate triggers often. The returned
// function puts back what was there, also after an error.
func setPollingInterval(ctx context.Context, connected *cluster.Cluster) (restore func() error, err error) {
	var before []string
	set := func(ctx context.Context, change func([]string) []string) error {
		ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
		defer cancel()
		deployments := connected.Host.AppsV1().Deployments(cluster.SystemNamespace)
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			deployment, err := deployments.Get(ctx, serverDeployment, metav1.GetOptions{})
			if err != nil {
				return err
			}
			container := &deployment.Spec.Template.Spec.Containers[0]
			container.Args = change(container.Args)
			_, err = deployments.Update(ctx, deployment, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			return fmt.Errorf("changing the flags of %s: %w", serverDeployment, err)
		}
		return connected.AwaitRollout(ctx, serverDeployment)
	}
	err = set(ctx, func(arguments []string) []string {
		before = slices.Clone(arguments)
		return append(slices.Clone(arguments), "--polling-interval="+pollingInterval.String())
	})
	return func() error {
		if before == nil {
			return nil
		}
		return set(context.WithoutCancel(ctx), func([]string) []string { return before })
	}, err
}
