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

// Package probe finds pods that can serve sooner than the kubelet does. It runs
// the readiness probes of a pod every few milliseconds, from the moment that the
// pod has an address, while a request or connection is held.
//
// It does not know what is held, which its Queue hides. Begin with Prober.
package probe

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

const (
	// fastInterval is the pause between two probes of a pod during the first
	// fastPeriod, slowInterval the pause after that.
	fastInterval = 10 * time.Millisecond
	slowInterval = 25 * time.Millisecond
	fastPeriod   = 2 * time.Second
	// fullSpeedPods is how many pods of a service are probed at full speed. With
	// more pods the pauses grow, so that the rate of probes stays the same.
	fullSpeedPods = 16
	// A starting pod often accepts a probe and responds much later, or never. The
	// next probe therefore does not wait for the response: another one begins every
	// overlapInterval, until overlap of them are outstanding. Each time-out doubles
	// the timeout of the next probe.
	overlapInterval = 25 * time.Millisecond
	overlap         = 3
	firstTimeout    = 250 * time.Millisecond
	// longestTimeout bounds the doubled timeout. So does the timeout that is
	// configured for the probe.
	longestTimeout = 10 * time.Minute
)

// errBusy is returned for an overlapping probe when all slots are in use.
var errBusy = errors.New("too many probes are running")

// Queue lists the pods to probe and records the results.
type Queue interface {
	// Candidates returns the pods that a held request or connection waits for.
	Candidates() []endpoint.Candidate
	// NeedsProbe reports whether it is still unknown that a candidate can serve.
	NeedsProbe(endpoint.Candidate) bool
	// Accepted records that a pod accepts connections, and whether that alone
	// makes it ready.
	Accepted(candidate endpoint.Candidate, enough bool)
	// ProbesSucceeded records that the readiness probes of a pod succeeded.
	ProbesSucceeded(endpoint.Candidate)
}

// Options configure a Prober.
type Options struct {
	// Queue lists the pods to probe.
	Queue Queue
	// Probes returns the readiness probes of pods that are not ready. With nil
	// such pods are not probed.
	Probes func() *v1alpha1.ReadinessProbes
	// Slots bounds how many probes the process runs at a time. Each running probe
	// holds one. All probers share them: one prober uses half of them at most, and
	// no more than are free.
	Slots chan struct{}
	// Tasks runs the probes, so that a panic fails one probe only. Optional.
	Tasks *task.Runner
	// RunProbe runs a probe. Defaults to Run.
	RunProbe func(ctx context.Context, target Target) error
}

// Prober probes the pods of one service.
type Prober struct {
	options Options
	// pods is how many pods are being probed.
	pods atomic.Int32
	// taken is how many of Options.Slots the prober holds.
	taken atomic.Int32
}

// New returns a Prober.
func New(options Options) *Prober {
	if options.RunProbe == nil {
		options.RunProbe = Run
	}
	return &Prober{options: options}
}

// Run probes until ctx ends. It lists the candidates again whenever changed has a
// value. Only one call may run at a time.
func (p *Prober) Run(ctx context.Context, changed <-chan struct{}) {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	probing := map[endpoint.Candidate]bool{}
	finished := make(chan endpoint.Candidate)
	for {
		for _, candidate := range p.options.Queue.Candidates() {
			if probing[candidate] || !p.canProbe(candidate) {
				continue
			}
			probing[candidate] = true
			running.Go(func() {
				p.pods.Add(1)
				p.options.Tasks.Repeat(ctx, func() { p.probePod(ctx, candidate) })
				p.pods.Add(-1)
				select {
				case finished <- candidate:
				case <-ctx.Done():
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case candidate := <-finished:
			delete(probing, candidate)
		}
	}
}

// canProbe reports whether there is anything to probe a candidate with.
func (p *Prober) canProbe(candidate endpoint.Candidate) bool {
	return candidate.Ready || p.options.Probes() != nil
}

// probePod probes a candidate until it succeeds or NeedsProbe returns false.
func (p *Prober) probePod(ctx context.Context, candidate endpoint.Candidate) {
	logger := klog.FromContext(ctx).WithValues("pod", candidate.Pod.Name, "port", candidate.Number)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	results := make(chan error, overlap)
	started, timeout := time.Now(), firstTimeout
	attempts, outstanding := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-results:
			outstanding--
			if err == nil {
				logger.V(2).Info("Pod is ready", "attempts", attempts, "after", time.Since(started))
				return
			}
			logger.V(6).Info("Pod is not ready yet", "attempts", attempts, "err", err)
			if errors.Is(err, context.DeadlineExceeded) {
				timeout = min(2*timeout, longestTimeout)
			}
			if outstanding == 0 {
				timer.Reset(p.pause(time.Since(started)))
			}
			continue
		case <-timer.C:
		}
		if !p.options.Queue.NeedsProbe(candidate) || !p.canProbe(candidate) {
			return
		}
		if outstanding < overlap {
			first, within := outstanding == 0, timeout
			attempts++
			outstanding++
			running.Go(func() {
				results <- p.options.Tasks.Try(func() error { return p.attempt(ctx, candidate, within, first) })
			})
		}
		timer.Reset(max(overlapInterval, p.pause(time.Since(started))))
	}
}

func (p *Prober) pause(elapsed time.Duration) time.Duration {
	pause := fastInterval
	if elapsed > fastPeriod {
		pause = slowInterval
	}
	return pause * max(1, time.Duration(p.pods.Load())/fullSpeedPods)
}

// attempt runs all probes of a candidate once, and records in the queue that they
// succeeded. With wait it waits for a slot, otherwise it fails when none is free.
func (p *Prober) attempt(ctx context.Context, candidate endpoint.Candidate, timeout time.Duration, wait bool) error {
	var probes []v1alpha1.ReadinessProbeAction
	if configured := p.options.Probes(); configured != nil && !candidate.Ready {
		probes = configured.Probes
	}
	accepts := false
	for i := range probes {
		if err := p.runProbe(ctx, candidate, &probes[i], timeout, wait); err != nil {
			return err
		}
		accepts = accepts || portOfProbe(&probes[i]) == int32(candidate.Number)
	}
	if !accepts {
		// No probe connects to the port that receives the traffic.
		connect := v1alpha1.ReadinessProbeAction{TCPSocket: &v1alpha1.TCPSocketAction{Port: int32(candidate.Number)}}
		if err := p.runProbe(ctx, candidate, &connect, timeout, wait); err != nil {
			return err
		}
	}
	if len(probes) > 0 {
		p.options.Queue.ProbesSucceeded(candidate)
	}
	p.options.Queue.Accepted(candidate, len(probes) == 0 && !candidate.Ready)
	return nil
}

// portOfProbe returns the port that a probe connects to.
func portOfProbe(action *v1alpha1.ReadinessProbeAction) int32 {
	switch {
	case action.HTTPGet != nil:
		return action.HTTPGet.Port
	case action.GRPC != nil:
		return action.GRPC.Port
	case action.TCPSocket != nil:
		return action.TCPSocket.Port
	}
	return 0
}

// acquire takes a slot. When none is free, it waits for one with wait, and returns
// errBusy otherwise.
func (p *Prober) acquire(ctx context.Context, wait bool) error {
	if p.tryAcquire() {
		return nil
	}
	if !wait {
		return errBusy
	}
	ticker := time.NewTicker(slowInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p.tryAcquire() {
			return nil
		}
	}
}

// tryAcquire takes a slot, unless the prober holds as many as are free: the pods
// of one service, which may never respond, leave slots for those of others.
func (p *Prober) tryAcquire() bool {
	slots := p.options.Slots
	if taken := int(p.taken.Add(1)); taken <= cap(slots)-len(slots) {
		select {
		case slots <- struct{}{}:
			return true
		default:
		}
	}
	p.taken.Add(-1)
	return false
}

// release returns a slot.
func (p *Prober) release() {
	p.taken.Add(-1)
	<-p.options.Slots
}

// runProbe runs one probe against the addresses of a pod in turn, until it
// succeeds on one of them.
func (p *Prober) runProbe(ctx context.Context, candidate endpoint.Candidate, action *v1alpha1.ReadinessProbeAction, timeout time.Duration, wait bool) error {
	if err := p.acquire(ctx, wait); err != nil {
		return err
	}
	defer p.release()
	limit := time.Duration(max(1, action.TimeoutSeconds)) * time.Second
	var err error
	for _, address := range candidate.Pod.Addresses {
		probeCtx, cancel := context.WithTimeout(ctx, min(timeout, limit))
		err = p.options.RunProbe(probeCtx, Target{Address: address, Action: action})
		if err != nil && probeCtx.Err() != nil {
			err = probeCtx.Err()
		}
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}
