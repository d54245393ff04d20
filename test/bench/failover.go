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
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/leader"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	apiserverDeployment = "elasti-apiserver"
	// failoverRequests is how many requests are sent around the end of a replica, one
	// every failoverInterval, each to another service that sleeps. They are sent for longer
	// than others wait for a leader that vanished. The replica is killed with the request
	// failoverKill.
	failoverRequests = 200
	failoverKill     = 20
	failoverInterval = 100 * time.Millisecond
	// failoverLate is how much later than that the last request may be sent.
	failoverLate = 2 * time.Second
	// failoverTimeout bounds the measurement with one replica, takeoverTimeout the time
	// until the replica is there again and another one leads.
	failoverTimeout = 10 * time.Minute
	takeoverTimeout = 2 * time.Minute
)

// failover measures how long wakes take while a replica of the API server is killed: the
// leader, and then another one.
func failover(ctx context.Context, b *bench) error {
	var all []time.Duration
	for _, leads := range []bool{true, false} {
		name := "the leader"
		if !leads {
			name = "a replica that does not lead"
		}
		took, err := b.wakesDuringKill(ctx, leads)
		b.durations(fmt.Sprintf("request sent → target scaled, one every %s, while %s is killed", failoverInterval, name), took)
		if err != nil {
			return fmt.Errorf("killing %s: %w", name, err)
		}
		all = append(all, took...)
	}
	b.set("failover_wake_max_s", durationQuantile(all, 1)/1000)
	return nil
}

// wakesDuringKill kills one replica of the API server, and measures the wakes of requests
// that are sent before, at that time and until another one leads. Any wake that fails
// is an error.
func (b *bench) wakesDuringKill(ctx context.Context, leads bool) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, failoverTimeout)
	defer cancel()
	if err := b.AwaitRollout(ctx, apiserverDeployment); err != nil {
		return nil, err
	}
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	apps := make([]*cluster.Application, failoverRequests)
	if err := inParallel(ctx, 0, failoverRequests, func(ctx context.Context, number int) (err error) {
		apps[number], err = stage.createPodless(ctx, objectName(number))
		return err
	}); err != nil {
		return nil, err
	}
	replicas, err := b.SystemPods(ctx, cluster.APIServerSelector)
	if err != nil {
		return nil, err
	}
	holder, err := b.leaseHolder(ctx)
	if err != nil {
		return nil, err
	}
	victim, err := replicaToKill(replicas, holder, leads)
	if err != nil {
		return nil, err
	}

	var results wakeResults
	err = atIntervals(ctx, failoverRequests, failoverInterval, failoverLate, func(number int) {
		if number == failoverKill {
			results.killed(cluster.KillContainer(victim))
		}
		results.ended(stage.scaledByRequest(ctx, apps[number]))
	})
	return results.took, errors.Join(err, results.err(), b.awaitTakeover(ctx, victim, holder, leads))
}

// replicaToKill returns the replica that leads, or another one.
func replicaToKill(replicas []corev1.Pod, holder string, leads bool) (*corev1.Pod, error) {
	if len(replicas) < 2 {
		return nil, fmt.Errorf("there are %d API servers; with fewer than two nothing can take over", len(replicas))
	}
	name := leaderName(holder)
	if !slices.ContainsFunc(replicas, func(pod corev1.Pod) bool { return pod.Name == name }) {
		return nil, fmt.Errorf("the holder of the Lease, %q, is none of the %d API servers", holder, len(replicas))
	}
	for i := range replicas {
		if (replicas[i].Name == name) == leads {
			return &replicas[i], nil
		}
	}
	return nil, errors.New("there is no such API server")
}

// leaderName returns the name of the pod that holds a Lease: what follows the last
// underscore makes the holder unique.
func leaderName(holder string) string {
	end := strings.LastIndex(holder, "_")
	return holder[:max(end, 0)]
}

// leaseHolder returns the holder of the Lease of the controller; empty while there is none.
func (b *bench) leaseHolder(ctx context.Context) (string, error) {
	lease, err := b.Host.CoordinationV1().Leases(cluster.SystemNamespace).Get(ctx, leader.LeaseName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading Lease %s: %w", leader.LeaseName, err)
	}
	if lease.Spec.HolderIdentity == nil {
		return "", nil
	}
	return *lease.Spec.HolderIdentity, nil
}

// awaitTakeover waits until the container of a killed replica runs anew and is ready and, if
// the replica led, until the Lease has another holder.
func (b *bench) awaitTakeover(ctx context.Context, killed *corev1.Pod, holder string, led bool) error {
	ctx, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	restarts := killed.Status.ContainerStatuses[0].RestartCount
	_, err := b.AwaitPods(ctx, cluster.SystemNamespace, cluster.APIServerSelector, "pod "+killed.Name+" is ready again", func(pods []*corev1.Pod) bool {
		return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.Name == killed.Name && cluster.PodIsReady(pod) &&
				len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount > restarts
		})
	})
	if err != nil || !led {
		return err
	}
	err = wait.PollUntilContextCancel(ctx, apiPollInterval, true, func(ctx context.Context) (bool, error) {
		now, err := b.leaseHolder(ctx)
		return now != "" && now != holder, err
	})
	if err != nil {
		return fmt.Errorf("waiting until another API server than %s leads: %w", holder, err)
	}
	return nil
}

// atIntervals calls do for so many numbers, each in a goroutine of its own, one every
// interval, and returns when all have ended. It returns an error when the last call was
// later than due by more than late.
func atIntervals(ctx context.Context, count int, interval, late time.Duration, do func(number int)) error {
	var running sync.WaitGroup
	defer running.Wait()
	var behind time.Duration
	began := time.Now()
	for number := range count {
		due := began.Add(time.Duration(number) * interval)
		if err := pause(ctx, time.Until(due)); err != nil {
			return err
		}
		behind = time.Since(due)
		running.Go(func() { do(number) })
	}
	if behind > late {
		return fmt.Errorf("the last of %d requests was sent %s late: this machine is too busy", count, behind.Round(time.Millisecond))
	}
	return nil
}

// wakeResults are the results of the wakes around a kill, and that of the kill. It is safe
// for concurrent use.
type wakeResults struct {
	mu       sync.Mutex
	took     []time.Duration
	failures []error
	kill     error
}

func (r *wakeResults) killed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kill = err
}

func (r *wakeResults) ended(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failures = append(r.failures, err)
		return
	}
	r.took = append(r.took, took)
}

// err returns the error of the kill, and how many wakes failed with the first reason.
func (r *wakeResults) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) == 0 {
		return r.kill
	}
	return errors.Join(r.kill, fmt.Errorf("%d of %d wakes failed, the first because: %w", len(r.failures), len(r.failures)+len(r.took), r.failures[0]))
}
