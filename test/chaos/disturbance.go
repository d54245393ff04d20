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
	"io"
	"slices"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	resolverDeployment = "elasti-resolver"
	// quietPeriod is the pause between two disturbances.
	quietPeriod = 5 * time.Second
	// addressRemoval is how long after a resolver was killed its address may still be
	// used: the kubelet notices, and then the slices and the rules of every node follow.
	addressRemoval = 15 * time.Second
)

// kill is the end of one resolver that could not say goodbye.
type kill struct {
	at      time.Time
	address string
}

// disturbance kills resolvers and rolls them out.
type disturbance struct {
	cluster  *cluster.Cluster
	kills    []kill
	rollouts int
}

// run disturbs until sending ends, and returns when the resolvers are all there
// again. It begins with a kill, then a rollout, and so on.
func (d *disturbance) run(ctx, sending context.Context) error {
	for turn := 0; ; turn++ {
		if !pause(sending, quietPeriod) {
			return d.cluster.AwaitRollout(ctx, resolverDeployment)
		}
		disturb := d.kill
		if turn%2 == 1 {
			disturb = d.rollOut
		}
		if err := disturb(ctx); err != nil {
			return err
		}
		if err := d.cluster.AwaitRollout(ctx, resolverDeployment); err != nil {
			return err
		}
	}
}

// pause reports whether ctx lasts that long.
func pause(ctx context.Context, period time.Duration) bool {
	timer := time.NewTimer(period)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *disturbance) kill(ctx context.Context) error {
	pods, err := d.cluster.SystemPods(ctx, cluster.ResolverSelector)
	if err != nil {
		return err
	}
	if len(pods) < 2 {
		return fmt.Errorf("there are %d resolvers; with fewer than two nothing can take over", len(pods))
	}
	victim := &pods[len(d.kills)%len(pods)]
	d.kills = append(d.kills, kill{at: time.Now(), address: victim.Status.PodIP})
	return cluster.KillContainer(victim)
}

func (d *disturbance) rollOut(ctx context.Context) error {
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"chaos":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	_, err := d.cluster.Host.AppsV1().Deployments(cluster.SystemNamespace).
		Patch(ctx, resolverDeployment, "application/merge-patch+json", patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("rolling out the resolvers: %w", err)
	}
	d.rollouts++
	return nil
}

// unexplained returns the failures that no killed resolver accounts for.
func (d *disturbance) unexplained(failures []failure) []failure {
	return slices.DeleteFunc(slices.Clone(failures), func(f failure) bool {
		return slices.ContainsFunc(d.kills, func(k kill) bool { return k.explains(f) })
	})
}

// window returns how many of the failures the kill explains, and how long after
// it the last of these was sent: until then a client still used its address.
func (k kill) window(failures []failure) (number int, last time.Duration) {
	for _, f := range failures {
		if k.explains(f) {
			number++
			last = max(last, f.sent.Sub(k.at))
		}
	}
	return number, last
}

// explains reports whether a request failed because it was with the killed
// resolver, or used its address before every component knew of its end.
func (k kill) explains(f failure) bool {
	if f.destination != k.address || !broken(f.err) {
		return false
	}
	return !f.ended.Before(k.at) && f.sent.Before(k.at.Add(addressRemoval))
}

// broken reports whether a connection was reset, refused or closed, rather than
// a request that got a status or no response at all.
func broken(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
