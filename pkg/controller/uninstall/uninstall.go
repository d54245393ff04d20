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

// Package uninstall notices that the product is being deleted from its
// cluster, and lets it put the cluster back as it was while it still can.
//
// Deleting the manifests deletes the permissions of the server before its pod
// is told to stop. So the server puts finalizers on what its permissions depend
// on: its ServiceAccount, its ClusterRole and its ClusterRoleBinding. They go
// when the teardown is done, or has failed for as long as a pod is given.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Finalizer keeps the permissions of the server until it has put the cluster
// back as it was.
const Finalizer = "elasti.truefoundry.com/uninstall"

const (
	// checkPeriod is the pause between two looks at whether the product is
	// being deleted. A server that is told to stop looks at once.
	checkPeriod = 5 * time.Second
	// lookTimeout ends a look that hangs.
	lookTimeout = 5 * time.Second
	// teardownTimeout ends a teardown: a pod is killed 60 s after it is told
	// to stop.
	teardownTimeout = 50 * time.Second
)

// Options configure a Runner. All fields but Clock are required.
type Options struct {
	// Host reads what the product consists of.
	Host kubernetes.Interface
	// Namespace is the namespace of the product. Name is the name of the
	// server's Deployment, ServiceAccount, ClusterRole and ClusterRoleBinding.
	Namespace string
	Name      string
	// Run is what the product does. It must return soon after its context
	// ends, with everything that it started ended. It may be called again.
	Run func(ctx context.Context) error
	// Teardown puts the cluster back as it was. It may be called again.
	Teardown func(ctx context.Context) error
	// Clock is the time. Defaults to the real clock.
	Clock clock.WithTicker
}

// Runner runs the product until it is deleted. Make it with New and run it once.
type Runner struct {
	options Options
	parts   []part

	// seen are the parts that existed. A part that never did, such as the
	// Deployment of a server that runs elsewhere, says nothing by its absence.
	// Only one goroutine at a time uses it.
	seen map[string]bool
}

// New returns a runner that does nothing until it is run.
func New(options Options) (*Runner, error) {
	if options.Host == nil || options.Namespace == "" || options.Name == "" || options.Run == nil || options.Teardown == nil {
		return nil, errors.New("uninstall: Host, Namespace, Name, Run and Teardown are needed")
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Runner{options: options, parts: partsOf(options.Host, options.Namespace, options.Name), seen: map[string]bool{}}, nil
}

// Run runs Options.Run until ctx ends or the product is being deleted, in
// which case it tears down, also after ctx has ended. What is installed again
// runs again. An error of Options.Run ends it.
func (r *Runner) Run(ctx context.Context) error {
	for {
		deleted, err := r.runUntilDeleted(ctx)
		if err != nil {
			return err
		}
		if deleted {
			r.tearDown(context.WithoutCancel(ctx))
		}
		if !r.pause(ctx) {
			return nil
		}
	}
}

// runUntilDeleted runs Options.Run, unless the product is being deleted by
// then, and reports whether it is after the run.
func (r *Runner) runUntilDeleted(ctx context.Context) (bool, error) {
	if r.isBeingDeleted(ctx) {
		return true, nil
	}
	runCtx, stop := context.WithCancel(ctx)
	defer stop()
	var watching sync.WaitGroup
	watching.Go(func() {
		for r.pause(runCtx) {
			if r.isBeingDeleted(runCtx) {
				stop()
			}
		}
	})
	err := r.options.Run(runCtx)
	ended := runCtx.Err() == nil
	stop()
	watching.Wait()
	if ended {
		if err == nil {
			err = errors.New("what runs while the product is installed ended by itself")
		}
		return false, err
	}
	return r.isBeingDeleted(context.WithoutCancel(ctx)), nil
}

// pause waits until it is time to look again. It returns false when ctx ends first.
func (r *Runner) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-r.options.Clock.After(checkPeriod):
		return ctx.Err() == nil
	}
}

// isBeingDeleted looks at every part, and guards those that are to stay until
// the teardown is done. What cannot be read says nothing.
func (r *Runner) isBeingDeleted(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	deleted := false
	for _, part := range r.parts {
		meta, err := part.get(ctx)
		switch {
		case apierrors.IsNotFound(err):
			deleted = deleted || r.seen[part.what]
		case err != nil:
			logger.V(2).Info("A part of the installation cannot be read", "part", part.what, "reason", err)
		case !meta.DeletionTimestamp.IsZero():
			deleted = true
		default:
			r.seen[part.what] = true
			if part.patch == nil || slices.Contains(meta.Finalizers, Finalizer) {
				continue
			}
			if err := setFinalizers(ctx, part, meta, append(slices.Clone(meta.Finalizers), Finalizer)); err != nil {
				logger.V(2).Info("A part of the installation cannot be guarded", "part", part.what, "reason", err)
			}
		}
	}
	return deleted
}

func (r *Runner) tearDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	logger.Info("The product is being deleted from the cluster")
	if err := r.options.Teardown(ctx); err != nil {
		logger.Error(err, "The cluster could not be put back as it was")
	}
	if err := r.release(ctx); err != nil {
		logger.Error(err, "Remove the finalizer by hand", "finalizer", Finalizer)
	}
	// What is not there after a deletion is not being deleted.
	clear(r.seen)
}

// release removes the finalizers, from all parts at the same time: the first
// one that goes takes the permission to change the others with it.
func (r *Runner) release(ctx context.Context) error {
	problems := make([]error, len(r.parts))
	guarded := make([]*metav1.ObjectMeta, len(r.parts))
	for i, part := range r.parts {
		if part.patch == nil {
			continue
		}
		meta, err := part.get(ctx)
		if err != nil && !apierrors.IsNotFound(err) {
			problems[i] = fmt.Errorf("reading the %s: %w", part.what, err)
		}
		if err == nil && slices.Contains(meta.Finalizers, Finalizer) {
			guarded[i] = meta
		}
	}
	var releasing sync.WaitGroup
	for i, meta := range guarded {
		if meta == nil {
			continue
		}
		releasing.Go(func() {
			rest := slices.DeleteFunc(slices.Clone(meta.Finalizers), func(finalizer string) bool { return finalizer == Finalizer })
			problems[i] = setFinalizers(ctx, r.parts[i], meta, rest)
		})
	}
	releasing.Wait()
	return errors.Join(problems...)
}
