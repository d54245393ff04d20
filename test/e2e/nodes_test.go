//go:build nodes

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
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/leader"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// secondNode is the node that hack/cluster/node.sh stops and starts.
	secondNode = "elasti-node-2"
	// nodeTimeout bounds the test of a node's death.
	nodeTimeout = 15 * time.Minute
	// nodeInterval is the time between two requests. The node is killed with the request
	// nodeKill, and requests are sent until after the control plane has missed it, which
	// takes 50 s: from then on nothing is sent to it.
	nodeInterval = 100 * time.Millisecond
	nodeKill     = 50
	nodeRequests = 750
	// nodeWakeTimeout bounds one wake.
	nodeWakeTimeout = 30 * time.Second
	// nodeLate is how much later than it was due the last request may be sent.
	nodeLate = 2 * time.Second
	// nodeWorkers is how many applications are created at a time.
	nodeWorkers = 16
	// leadAttempts is how often the leader is replaced until one on the second node leads.
	leadAttempts = 5
	// leaseInterval is the pause between two reads of the Lease.
	leaseInterval = 200 * time.Millisecond
)

// TestNodeOfTheLeaderDies kills the node with the API server that leads, and with one of the
// resolvers, while clients on the other node wake targets: no request fails, no wake is lost,
// and the longest one is logged.
func TestNodeOfTheLeaderDies(t *testing.T) {
	s := newSceneWithin(t, nodeTimeout)
	s.spreadOverNodes()
	observer := s.observe()
	apps := s.createWithoutPods(nodeRequests)
	holder := s.awaitLeaderOn(secondNode)
	s.startNodeAtEnd()

	wakes := nodeWakes{failed: map[int]error{}}
	var running sync.WaitGroup
	killed := make(chan error, 1)
	began := time.Now()
	for number, app := range apps {
		due := began.Add(time.Duration(number) * nodeInterval)
		s.check(s.pauseUntil(due))
		if late := time.Since(due); late > nodeLate {
			t.Errorf("request %d was sent %s late: this machine is too busy", number, late)
		}
		if number == nodeKill {
			go func() { killed <- s.setNode(s.ctx, "stop") }()
		}
		running.Go(func() {
			took, err := s.wakeByRequest(observer, app)
			wakes.add(number, took, err)
		})
	}
	running.Wait()
	s.check(<-killed)

	wakes.check(t)
	if s.nodeIsReady(secondNode) {
		t.Errorf("the control plane has not missed node %s: there were too few requests", secondNode)
	}
	if now := s.leaseHolder(); now == "" || now == holder {
		t.Errorf("the holder of the Lease is %q, after that on the node that was killed, %q", now, holder)
	}
}

// spreadOverNodes replaces the pods of the product when they are not spread over the nodes,
// as when they are older than the second node.
func (s *scene) spreadOverNodes() {
	s.Helper()
	if !onBothNodes(s.nodesOf(cluster.APIServerSelector)) || !onBothNodes(s.nodesOf(cluster.ResolverSelector)) {
		s.restart(apiserverDeployment, resolverDeployment)
	}
	s.checkSpread(cluster.APIServerSelector)
	s.checkSpread(cluster.ResolverSelector)
}

// checkSpread expects that each of the two nodes has one of the pods of the product.
func (s *scene) checkSpread(selector string) {
	s.Helper()
	if nodes := s.nodesOf(selector); !onBothNodes(nodes) {
		s.Fatalf("the pods with %s run on %v, want one on each of two nodes", selector, nodes)
	}
}

// nodesOf returns the nodes of the product's pods, one for each pod.
func (s *scene) nodesOf(selector string) []string {
	s.Helper()
	pods, err := s.SystemPods(s.ctx, selector)
	s.check(err)
	var nodes []string
	for i := range pods {
		nodes = append(nodes, pods[i].Spec.NodeName)
	}
	return nodes
}

// onBothNodes reports whether there are two nodes, each once.
func onBothNodes(nodes []string) bool {
	return len(nodes) == 2 && nodes[0] != nodes[1] && slices.Contains(nodes, secondNode)
}

// createWithoutPods creates applications that sleep, and that get no pods when they are
// scaled: their Deployments are paused. Clients reach the resolvers on their own node alone,
// as any client that is not on the node that is killed may.
func (s *scene) createWithoutPods(count int) []*cluster.Application {
	s.Helper()
	apps := make([]*cluster.Application, count)
	failures := make([]error, count)
	workqueue.ParallelizeUntil(s.ctx, nodeWorkers, count, func(number int) {
		app := s.NewApplication(s.namespace, cluster.ApplicationOptions{
			Name:       fmt.Sprintf("web-%03d", number),
			Deployment: func(deployment *appsv1.DeploymentSpec) { deployment.Paused = true },
			Service: func(service *corev1.ServiceSpec) {
				service.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
			},
		})
		apps[number] = app
		if failures[number] = app.Create(s.ctx); failures[number] == nil {
			failures[number] = errors.Join(app.AwaitAsleep(s.ctx), app.AwaitResolverSlice(s.ctx, true), app.AwaitReachable(s.ctx))
		}
	})
	s.check(errors.Join(append(failures, s.ctx.Err())...))
	return apps
}

// wakeByRequest sends a request to an application that sleeps, and returns how long after
// that its target was scaled. A response before that is an error.
func (s *scene) wakeByRequest(observer *cluster.Observer, app *cluster.Application) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(s.ctx, nodeWakeTimeout)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer fail(nil)
	start := time.Now()
	ended.Go(func() {
		response, err := cluster.Get(ctx, app.URL("/"))
		if err == nil {
			err = fmt.Errorf("the request got status %d, it was not held: %.200s", response.Status, response.Body)
		}
		fail(err)
	})
	moment, err := observer.Await(ctx, start, cluster.Scaled, app.Name, "1")
	if err != nil {
		return 0, err
	}
	return moment.At.Sub(start), nil
}

// nodeWakes are how long the wakes took, and why others failed. It is safe for concurrent
// use.
type nodeWakes struct {
	mu      sync.Mutex
	took    []time.Duration
	slowest int
	failed  map[int]error
}

func (w *nodeWakes) add(number int, took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed[number] = err
		return
	}
	if len(w.took) == 0 || took > slices.Max(w.took) {
		w.slowest = number
	}
	w.took = append(w.took, took)
}

// check expects that no wake failed, and logs how long they took.
func (w *nodeWakes) check(t *testing.T) {
	t.Helper()
	for number, err := range w.failed {
		t.Errorf("wake %d, %s after the kill: %v", number, sinceKill(number), err)
	}
	if len(w.took) == 0 {
		t.Fatal("there was no wake")
	}
	slices.Sort(w.took)
	t.Logf("%d wakes of %d, one every %s, while the node of the leader is killed: median %s, 99 %% within %s",
		len(w.took), nodeRequests, nodeInterval, w.took[len(w.took)/2], w.took[len(w.took)*99/100])
	t.Logf("failover_wake_max_s %.3f, of the request that was sent %s after the kill", w.took[len(w.took)-1].Seconds(), sinceKill(w.slowest))
}

// sinceKill is when a request was due, after the node was killed.
func sinceKill(number int) time.Duration {
	return time.Duration(number-nodeKill) * nodeInterval
}

// awaitLeaderOn returns the holder of the Lease once that is on the node. A leader that is on
// another one is replaced.
func (s *scene) awaitLeaderOn(node string) (holder string) {
	s.Helper()
	for range leadAttempts {
		holder = s.leaseHolder()
		name := holder[:max(strings.LastIndex(holder, "_"), 0)]
		pods, err := s.SystemPods(s.ctx, cluster.APIServerSelector)
		s.check(err)
		leading := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Name == name })
		if leading >= 0 && pods[leading].Spec.NodeName == node {
			return holder
		}
		if leading >= 0 {
			s.check(s.Host.CoreV1().Pods(cluster.SystemNamespace).Delete(s.ctx, name, metav1.DeleteOptions{}))
		}
		s.check(wait.PollUntilContextCancel(s.ctx, leaseInterval, true, func(context.Context) (bool, error) {
			now := s.leaseHolder()
			return now != "" && now != holder, nil
		}))
		s.check(s.AwaitRollout(s.ctx, apiserverDeployment))
		s.checkSpread(cluster.APIServerSelector)
	}
	s.Fatalf("after %d attempts no API server on node %s leads", leadAttempts, node)
	return ""
}

// leaseHolder returns the holder of the Lease of the controller; empty while there is none.
func (s *scene) leaseHolder() string {
	s.Helper()
	lease, err := s.Host.CoordinationV1().Leases(cluster.SystemNamespace).Get(s.ctx, leader.LeaseName, metav1.GetOptions{})
	s.check(err)
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// nodeIsReady reports whether the control plane takes a node for ready.
func (s *scene) nodeIsReady(name string) bool {
	s.Helper()
	node, err := s.Host.CoreV1().Nodes().Get(s.ctx, name, metav1.GetOptions{})
	s.check(err)
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// startNodeAtEnd has the node run, and the product be complete, after the test.
func (s *scene) startNodeAtEnd() {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), testTimeout)
		defer cancel()
		err := s.setNode(ctx, "start")
		if err = errors.Join(err, s.AwaitRollout(ctx, apiserverDeployment), s.AwaitRollout(ctx, resolverDeployment)); err != nil {
			s.Errorf("starting node %s again: %v", secondNode, err)
		}
	})
}

// setNode stops or starts the second node.
func (s *scene) setNode(ctx context.Context, action string) error {
	command := exec.CommandContext(ctx, filepath.Join(s.Repository, "hack", "cluster", "node.sh"), action, "2")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, output)
	}
	return nil
}

// pauseUntil returns at the time, or an error when the test ends before.
func (s *scene) pauseUntil(due time.Time) error {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}
