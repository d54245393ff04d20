//go:build cycles

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

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
	"github.com/truefoundry/elasti-apiserver/test/e2e/programs"
)

const (
	// triggerTimeout bounds one cycle. That of prometheus takes the longest: twice, a
	// minute has to pass without a missed scrape.
	triggerTimeout = 8 * time.Minute
	// enabledFor is how long the target may sleep in the cycle of a schedule.
	enabledFor = 2 * time.Minute
)

// TestTriggersRunAFullCycle takes one application for each type of trigger through a
// full cycle, all at the same time. The type traffic has tests of its own.
func TestTriggersRunAFullCycle(t *testing.T) {
	s := newScene(t)
	s.withArgument(apiserverDeployment, "--polling-interval=2s")
	for name, cycle := range map[string]func(*scene){
		"prometheus":     prometheusCycle,
		"cpu":            cpuCycle,
		"externalMetric": externalMetricCycle,
		"enabledPeriod":  enabledPeriodCycle,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cycle(newSceneWithin(t, triggerTimeout))
		})
	}
}

// sleepsBy returns a change of a spec that makes the target sleep by one trigger.
func sleepsBy(triggerType, metadata string) func(*v1alpha1.ElastiServiceSpec) {
	return func(spec *v1alpha1.ElastiServiceSpec) {
		spec.CooldownPeriod = ptr.To(int32(trafficCooldown / time.Second))
		spec.Triggers = []v1alpha1.ScaleTrigger{{Type: triggerType, Metadata: &runtime.RawExtension{Raw: []byte(metadata)}}}
	}
}

// The values come from a Prometheus server that scrapes the application's counter of
// requests. It restarts without its data during the cycle.
func prometheusCycle(s *scene) {
	host, err := s.NodeAddress(s.ctx)
	s.check(err)
	prometheus, err := programs.NewPrometheus(s.tool("prometheus"), host, s.TempDir(), fmt.Sprintf(
		"- job_name: application\n  http_sd_configs:\n  - url: %q\n    refresh_interval: 1s\n", s.serveScrapeTargets()))
	s.check(err)
	s.check(prometheus.Start())
	s.Cleanup(prometheus.Kill)
	s.Cleanup(func() {
		if s.Failed() {
			s.Log("Prometheus:", prometheus.Log())
		}
	})

	app := s.asleep(cluster.ApplicationOptions{Spec: sleepsBy("prometheus", fmt.Sprintf(
		`{"query":"sum(rate(application_requests_total[5s])) or vector(0)","threshold":1,"serverAddress":"http://%s","uptimeFilter":"job=\"prometheus\""}`, prometheus.Address))})
	traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 10, Limit: 10000, Timeout: time.Minute}
	s.runCycle(app, traffic, func() {
		s.awaitTriggers(app, metav1.ConditionTrue)
		s.rest(2 * trafficCooldown)
		s.check(prometheus.Restart(true))
		s.awaitTriggers(app, metav1.ConditionFalse)
		s.rest(2 * trafficCooldown)
	})
}

// serveScrapeTargets serves the addresses of the pods of the scene's namespace to
// Prometheus, until the test ends, and returns the URL.
func (s *scene) serveScrapeTargets() string {
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		pods, err := s.Host.CoreV1().Pods(s.namespace).List(request.Context(), metav1.ListOptions{})
		if err != nil {
			http.Error(response, err.Error(), http.StatusInternalServerError)
			return
		}
		targets := []string{}
		for i := range pods.Items {
			if address := pods.Items[i].Status.PodIP; address != "" {
				targets = append(targets, net.JoinHostPort(address, "8080"))
			}
		}
		writeJSON(response, []map[string][]string{{"targets": targets}})
	}))
	s.Cleanup(server.Close)
	return server.URL
}

// The values come from the kubelet through metrics-server.
func cpuCycle(s *scene) {
	host, err := s.NodeAddress(s.ctx)
	s.check(err)
	metrics, err := programs.NewMetricsServer(s.tool("metrics-server"), s.Kubeconfig, host, s.TempDir())
	s.check(err)
	s.check(metrics.Start())
	s.Cleanup(metrics.Kill)
	s.Cleanup(func() {
		if s.Failed() {
			s.Log("metrics-server:", metrics.Log())
		}
	})
	s.registerAPI("metrics.k8s.io", "v1beta1", metrics.Address)

	app := s.asleep(cluster.ApplicationOptions{Spec: sleepsBy("cpu", `{"threshold":"40m"}`)})
	traffic := &cluster.Traffic{Application: app, Path: "/compute?for=50ms", PerSecond: 5, Limit: 10000, Timeout: time.Minute}
	s.runCycle(app, traffic, func() {
		s.awaitTriggers(app, metav1.ConditionTrue)
		s.rest(4 * trafficCooldown)
	})
}

// The values come from an external metrics API, and wake the target when there is work.
func externalMetricCycle(s *scene) {
	var waiting atomic.Int64
	s.registerAPI("external.metrics.k8s.io", "v1beta1", s.serveQueueLengths(map[string]func() int64{
		"orders":  waiting.Load,
		"returns": func() int64 { return 100 },
	}))
	waiting.Store(5)
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{
		Spec: sleepsBy("externalMetric", `{"metricName":"queue_length","selector":"queue=orders","threshold":"1"}`),
	})
	s.check(app.Create(s.ctx))
	s.awaitReplicas(app, 1)
	s.awaitEvent(app, "WakeRequested")
	s.check(app.AwaitReachable(s.ctx))

	traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 10, Limit: 10000, Timeout: time.Minute}
	s.runCycle(app, traffic, func() {
		s.awaitTriggers(app, metav1.ConditionTrue)
		s.rest(2 * trafficCooldown)
		waiting.Store(0)
	})
}

// The target may sleep by a schedule, and is woken when it may not.
func enabledPeriodCycle(s *scene) {
	observer := s.observe()
	begin := time.Now().UTC().Add(20 * time.Second).Truncate(time.Minute).Add(time.Minute)
	end := begin.Add(enabledFor)
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		sleepsByTraffic(spec)
		spec.EnabledPeriod = &v1alpha1.EnabledPeriod{
			Schedule: fmt.Sprintf("%d %d * * *", begin.Minute(), begin.Hour()),
			Duration: enabledFor.String(),
		}
	}})
	s.check(app.Create(s.ctx))
	awake, err := observer.Await(s.ctx, time.Time{}, cluster.Scaled, app.Name, "1")
	s.check(err)
	s.awaitEvent(app, "WakeRequested")

	asleep, err := observer.Await(s.ctx, awake.At, cluster.Scaled, app.Name, "0")
	s.check(err)
	if asleep.At.Before(begin) {
		s.Fatalf("the target was put to sleep at %s, and may sleep from %s on", asleep.At.UTC(), begin)
	}
	s.check(app.AwaitAsleep(s.ctx))
	s.check(app.AwaitReachable(s.ctx))
	s.get(app, "/")
	if awake, err = observer.Await(s.ctx, asleep.At, cluster.Scaled, app.Name, "1"); err != nil {
		s.Fatal(err)
	}
	if asleep, err = observer.Await(s.ctx, awake.At, cluster.Scaled, app.Name, "0"); err != nil {
		s.Fatal(err)
	}
	if awake, err = observer.Await(s.ctx, asleep.At, cluster.Scaled, app.Name, "1"); err != nil {
		s.Fatal(err)
	}
	if asleep.At.After(end) || awake.At.Before(end) {
		s.Fatalf("the target slept again at %s and was woken at %s, and may sleep until %s: %v", asleep.At.UTC(), awake.At.UTC(), end, observer.Since(begin))
	}
	s.awaitPods(app, 1)
	s.checkStaysAwake(app, observer, func() { s.rest(2 * trafficCooldown) })
}

// awaitTriggers waits for the status of the condition of the triggers.
func (s *scene) awaitTriggers(app *cluster.Application, healthy metav1.ConditionStatus) {
	s.Helper()
	_, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionTriggersHealthy, healthy)
	s.check(err)
}
