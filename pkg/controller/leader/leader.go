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

// Package leader runs something on one replica at a time, the one that holds a Lease. It
// knows nothing of what it runs. Begin with Runner.
package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// LeaseName is the name of the Lease of the controller.
const LeaseName = "elasti-apiserver-controller"

const (
	// leaseDuration is how long the others wait for a leader that vanished.
	leaseDuration = 15 * time.Second
	// renewDeadline is how long a leader that cannot renew keeps running: the rest
	// of leaseDuration is for stopping before another one starts.
	renewDeadline = 10 * time.Second
	// retryPeriod is the pause between the attempts to lead and to renew. The
	// attempts to lead are jittered up to 2.2 times of it, so that a lease
	// that is given up is taken within 2.2 s.
	retryPeriod = time.Second
)

// Options configure a Runner. Fields without a default are required.
type Options struct {
	// Leases reads and writes the Lease.
	Leases coordinationv1.LeasesGetter
	// Namespace is the namespace of the Lease.
	Namespace string
	// Name is the name of the Lease. Defaults to LeaseName.
	Name string
	// Identity is the name of this replica in the Lease, such as that of its pod. New makes it unique.
	Identity string
	// Run is what the leader runs. It must return soon after its context
	// ends, with everything that it started ended. It may be called again.
	Run func(ctx context.Context) error
}

// Runner runs something while it is the leader. Make it with New and run it
// once.
type Runner struct {
	options Options
}

// New returns a runner that does nothing until it is run.
func New(options Options) (*Runner, error) {
	if options.Leases == nil || options.Namespace == "" || options.Identity == "" || options.Run == nil {
		return nil, errors.New("leader: Leases, Namespace, Identity and Run are needed")
	}
	if options.Name == "" {
		options.Name = LeaseName
	}
	// Replicas of one name, such as those in the network of their node, would
	// all take the lease for their own.
	options.Identity += "_" + string(uuid.NewUUID())
	return &Runner{options: options}, nil
}

// Run contends for the lease until ctx ends, and runs Options.Run each time
// that it has it. Losing the lease ends that run, and contention continues. When
// ctx ends, the lease is released after the run has ended, so that another
// replica can take over at once. An error of Options.Run ends it.
func (r *Runner) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("lease", klog.KRef(r.options.Namespace, r.options.Name), "identity", r.options.Identity)
	ctx = klog.NewContext(ctx, logger)
	for ctx.Err() == nil {
		if err := r.contend(ctx); err != nil {
			return err
		}
	}
	return nil
}

// contend waits for the lease, and runs until it is lost or ctx ends.
func (r *Runner) contend(ctx context.Context) error {
	// The lease outlives ctx until the run has ended.
	electionCtx, endElection := context.WithCancel(context.WithoutCancel(ctx))
	defer endElection()
	leading := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: r.options.Namespace, Name: r.options.Name},
			Client:     r.options.Leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: r.options.Identity},
		},
		Name:            r.options.Name,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leadCtx context.Context) { leading <- leadCtx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("preparing the election of a leader: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(electionCtx)
	}()
	defer func() {
		endElection()
		<-ended
	}()
	select {
	case <-ctx.Done():
		return nil
	case <-ended:
		return nil
	case leadCtx := <-leading:
		return r.lead(ctx, leadCtx)
	}
}

// lead runs until ctx or leadCtx, which ends with the lease, ends.
func (r *Runner) lead(ctx, leadCtx context.Context) error {
	runCtx, stop := context.WithCancel(leadCtx)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	logger := klog.FromContext(ctx)
	logger.Info("Started leading")
	err := r.options.Run(runCtx)
	logger.Info("Stopped leading", "lost", leadCtx.Err() != nil)
	if err != nil && runCtx.Err() == nil {
		return fmt.Errorf("running as the leader: %w", err)
	}
	if runCtx.Err() == nil {
		return errors.New("the work of the leader ended unexpectedly")
	}
	return nil
}
