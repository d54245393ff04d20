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

// Package probe asks pods whether they can answer, more often than the kubelet
// does: it runs their own readiness probes every few milliseconds from the
// moment that a pod has an address, for as long as something is held.
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
	// fastInterval is the pause between two probes of a pod in its first
	// moments, slowInterval after fastPeriod.
	fastInterval = 10 * time.Millisecond
	slowInterval = 25 * time.Millisecond
	fastPeriod   = 2 * time.Second
	// crowd is how many pods of a service are probed at full speed; with more
	// the pauses grow, so that the number of probes a second stays the same.
	crowd = 16
	// A pod that is starting often accepts a probe and answers it much later, if
	// at all. So the next one does not wait for it: while one is not answered
	// another begins every overlapInterval, up to overlap of them. Each time one
	// times out the next may take twice as long.
	overlapInterval = 25 * time.Millisecond
	overlap         = 3
	firstTimeout    = 250 * time.Millisecond
	// longestTimeout bounds that; the probe's own timeout is a bound as well.
	longestTimeout = 10 * time.Minute
)

// errBusy means that too many probes of the process run for one that need not be.
var errBusy = errors.New("too many probes are running")

// Queue has the questions, and takes the answers.
type Queue interface {
	// Questions returns what something waits to know.
	Questions() []endpoint.Question
	// Open reports whether a question is still worth asking.
	Open(endpoint.Question) bool
	// Accepted tells that a pod accepts connections, and whether that is enough
	// for it to be ready.
	Accepted(question endpoint.Question, enough bool)
	// Confirmed tells that the readiness probes of a pod succeeded.
	Confirmed(endpoint.Question)
}

// Options are what a Prober is made of.
type Options struct {
	// Queue has the questions.
	Queue Queue
	// Probes returns what pods that are not ready are asked. Nil: they are not.
	Probes func() *v1alpha1.ReadinessProbes
	// Slots bounds how many probes of the process run at a time: each takes a
	// place while it runs. Shared by all probers; each takes half of them at most, and
	// no more than are free.
	Slots chan struct{}
	// Tasks runs the probes, so that a panic of one fails that one only. Optional.
	Tasks *task.Runner
	// Ask runs a probe. Defaults to Ask.
	Ask func(ctx context.Context, target Target) error
}

// Prober probes the pods of one service.
type Prober struct {
	options Options
	// asking is how many pods are being probed.
	asking atomic.Int32
	// taken is how many places of Options.Slots the prober has.
	taken atomic.Int32
}

// New returns a Prober.
func New(options Options) *Prober {
	if options.Ask == nil {
		options.Ask = Ask
	}
	return &Prober{options: options}
}

// Run probes until ctx ends. It looks for pods to probe whenever changed has a
// value. It must not run twice at a time.
func (p *Prober) Run(ctx context.Context, changed <-chan struct{}) {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := map[endpoint.Question]bool{}
	finished := make(chan endpoint.Question)
	for {
		for _, question := range p.options.Queue.Questions() {
			if asked[question] || !p.askable(question) {
				continue
			}
			asked[question] = true
			running.Go(func() {
				p.asking.Add(1)
				p.options.Tasks.Repeat(ctx, func() { p.ask(ctx, question) })
				p.asking.Add(-1)
				select {
				case finished <- question:
				case <-ctx.Done():
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case question := <-finished:
			delete(asked, question)
		}
	}
}

// askable reports whether a pod can be asked at all.
func (p *Prober) askable(question endpoint.Question) bool {
	return question.Ready || p.options.Probes() != nil
}

// ask probes one pod until it can answer, or nobody wants to know any more.
func (p *Prober) ask(ctx context.Context, question endpoint.Question) {
	logger := klog.FromContext(ctx).WithValues("pod", question.Pod.Name, "port", question.Number)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	results := make(chan error, overlap)
	started, timeout := time.Now(), firstTimeout
	attempts, unanswered := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-results:
			unanswered--
			if err == nil {
				logger.V(2).Info("A pod can answer", "attempts", attempts, "after", time.Since(started))
				return
			}
			logger.V(6).Info("A pod cannot answer yet", "attempts", attempts, "err", err)
			if errors.Is(err, context.DeadlineExceeded) {
				timeout = min(2*timeout, longestTimeout)
			}
			if unanswered == 0 {
				timer.Reset(p.pause(time.Since(started)))
			}
			continue
		case <-timer.C:
		}
		if !p.options.Queue.Open(question) || !p.askable(question) {
			return
		}
		if unanswered < overlap {
			first, within := unanswered == 0, timeout
			attempts++
			unanswered++
			running.Go(func() {
				results <- p.options.Tasks.Try(func() error { return p.round(ctx, question, within, first) })
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
	return pause * max(1, time.Duration(p.asking.Load())/crowd)
}

// round asks a pod everything once, and tells the queue when all went well.
// Patient is whether it waits when too many probes of the process are running.
func (p *Prober) round(ctx context.Context, question endpoint.Question, timeout time.Duration, patient bool) error {
	var probes []v1alpha1.ReadinessProbeAction
	if configured := p.options.Probes(); configured != nil && !question.Ready {
		probes = configured.Probes
	}
	accepts := false
	for i := range probes {
		if err := p.probe(ctx, question, &probes[i], timeout, patient); err != nil {
			return err
		}
		accepts = accepts || portOfProbe(&probes[i]) == int32(question.Number)
	}
	if !accepts {
		// The port that traffic goes to is another than the probed ones.
		connect := v1alpha1.ReadinessProbeAction{TCPSocket: &v1alpha1.TCPSocketAction{Port: int32(question.Number)}}
		if err := p.probe(ctx, question, &connect, timeout, patient); err != nil {
			return err
		}
	}
	if len(probes) > 0 {
		p.options.Queue.Confirmed(question)
	}
	p.options.Queue.Accepted(question, len(probes) == 0 && !question.Ready)
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

// take takes a slot, or fails.
func (p *Prober) take(ctx context.Context, patient bool) error {
	if p.tryTake() {
		return nil
	}
	if !patient {
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
		if p.tryTake() {
			return nil
		}
	}
}

// tryTake takes a slot, unless the prober has as many as are free: the pods of one
// service, which may never answer, leave room for those of others.
func (p *Prober) tryTake() bool {
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

// giveBack gives a slot back.
func (p *Prober) giveBack() {
	p.taken.Add(-1)
	<-p.options.Slots
}

// probe runs one probe against the addresses of a pod, until one succeeds.
func (p *Prober) probe(ctx context.Context, question endpoint.Question, action *v1alpha1.ReadinessProbeAction, timeout time.Duration, patient bool) error {
	if err := p.take(ctx, patient); err != nil {
		return err
	}
	defer p.giveBack()
	limit := time.Duration(max(1, action.TimeoutSeconds)) * time.Second
	var err error
	for _, address := range question.Pod.Addresses {
		probeCtx, cancel := context.WithTimeout(ctx, min(timeout, limit))
		err = p.options.Ask(probeCtx, Target{Address: address, Action: action})
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
