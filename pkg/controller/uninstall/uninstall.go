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

// Package uninstall detects that the product is being deleted from its cluster, and
// restores the cluster while the product still has the permissions.
//
// Deleting the manifests deletes the permissions of the server before its pod is
// terminated. So the server puts finalizers on what its permissions depend on: its
// ServiceAccount, its ClusterRole and its ClusterRoleBinding. They are removed when the
// teardown is done, or when it has failed until the end of its timeout.
//
// An upgrade or a repair may delete a single part and create it again. So one part that
// is deleted is not yet an uninstall: see decide.
//
// It does not know what the teardown does. Begin with Runner.
package uninstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Finalizer keeps the permissions of the server until it has put the cluster
// back as it was.
const Finalizer = "elasti.truefoundry.com/uninstall"

const (
	// checkPeriod is the pause between two checks whether the product is being
	// deleted, and pendingPeriod the one while that is not decided. A server that
	// is told to stop checks at once.
	checkPeriod   = 5 * time.Second
	pendingPeriod = time.Second
	// replacementTime is how long a single part that is deleted may take to come
	// back, or others to follow it.
	replacementTime = 10 * time.Second
	// checkTimeout ends a check that hangs.
	checkTimeout = 5 * time.Second
	// teardownTimeout ends a teardown. With replacementTime before it, that is
	// less than the 60 s after which a pod that is told to stop is killed.
	teardownTimeout = 45 * time.Second
)

// Options configure a Runner. All fields but ServiceAccount and Clock are
// required.
type Options struct {
	// Host reads what the product consists of, and changes its finalizers. Its requests
	// are to go through Transport.
	Host kubernetes.Interface
	// Namespace is the namespace of the product. Name is the name of the
	// server's Deployment, ClusterRole and ClusterRoleBinding.
	Namespace string
	Name      string
	// ServiceAccount is the name of the server's ServiceAccount. Defaults to Name.
	ServiceAccount string
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
	// Only one goroutine at a time uses it, and what follows.
	seen map[string]bool
	// deletions are the parts that are deleted, until they are back. It is bounded by
	// the parts.
	deletions map[string]*deletion
}

// deletion is that of one part.
type deletion struct {
	// uid is that of the object that is being deleted. Empty when it was deleted before
	// that was observed.
	uid types.UID
	// since is when the deletion was observed first.
	since time.Time
	// replaced is true once the part was taken for one that is being replaced. Its
	// finalizer is removed then, and it says nothing of an uninstall any more.
	replaced bool
}

// New returns a runner that does nothing until it is run.
func New(options Options) (*Runner, error) {
	if options.Host == nil || options.Namespace == "" || options.Name == "" || options.Run == nil || options.Teardown == nil {
		return nil, errors.New("uninstall: Host, Namespace, Name, Run and Teardown are needed")
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	serviceAccount := cmp.Or(options.ServiceAccount, options.Name)
	return &Runner{options: options, parts: partsOf(options.Host, options.Namespace, options.Name, serviceAccount), seen: map[string]bool{}, deletions: map[string]*deletion{}}, nil
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
	if r.awaitDecision(ctx) {
		return true, nil
	}
	runCtx, stop := context.WithCancel(ctx)
	defer stop()
	var watching sync.WaitGroup
	watching.Go(func() {
		for r.pause(runCtx) {
			if r.check(runCtx) == uninstalled {
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
			err = errors.New("the work of the controller ended unexpectedly")
		}
		return false, err
	}
	return r.awaitDecision(context.WithoutCancel(ctx)), nil
}

// awaitDecision reports whether the product is being deleted. It waits while that is not
// decided: for replacementTime, or longer when one part after the other is deleted.
func (r *Runner) awaitDecision(ctx context.Context) bool {
	for {
		switch r.check(ctx) {
		case uninstalled:
			return true
		case installed:
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-r.options.Clock.After(pendingPeriod):
		}
	}
}

// pause waits until it is time for the next check. It returns false when ctx
// ends first.
func (r *Runner) pause(ctx context.Context) bool {
	period := checkPeriod
	for _, deletion := range r.deletions {
		if !deletion.replaced {
			period = pendingPeriod
		}
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.options.Clock.After(period):
		return ctx.Err() == nil
	}
}

// decision says what the deletion of parts means.
type decision int

const (
	// installed: nothing is deleted, or a part that is being replaced.
	installed decision = iota
	// pending: a single part is deleted. It may come back, or others follow.
	pending
	// uninstalled: the product is being deleted.
	uninstalled
)

// decide returns what it means that these parts are deleted, without those that were
// taken for replaced, and that a single one has been for pendingFor:
//
//   - uninstalled, when the namespace is deleted, or several parts are: these are not
//     replaced at the same time.
//   - pending, while a single part may still be created again: for replacementTime.
//   - uninstalled, when that part is the Deployment: its deletion ends the server, which has
//     to restore the cluster first.
//   - installed, for any other part: the server's finalizer keeps it from being created
//     again, so it is taken for replaced.
func decide(deleted []part, pendingFor time.Duration) decision {
	switch {
	case len(deleted) == 0:
		return installed
	case len(deleted) > 1 || deleted[0].kind == kindNamespace:
		return uninstalled
	case pendingFor < replacementTime:
		return pending
	case deleted[0].kind == kindDeployment:
		return uninstalled
	default:
		return installed
	}
}

// check reads every part, adds the finalizer to those that are to stay until the teardown
// is done, and releases a single one that is being replaced. A part that cannot be read does
// not count.
func (r *Runner) check(ctx context.Context) decision {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	now := r.options.Clock.Now()
	var deleted []part
	var pendingFor time.Duration
	for _, part := range r.parts {
		if r.isDeleted(ctx, part, now) && !r.deletions[part.what()].replaced {
			deleted = append(deleted, part)
			pendingFor = now.Sub(r.deletions[part.what()].since)
		}
	}
	result := decide(deleted, pendingFor)
	if result == installed && len(deleted) == 1 {
		part := deleted[0].what()
		r.deletions[part].replaced = true
		klog.FromContext(ctx).Info("Only this part of the installation was deleted: it is taken for a replacement, and targets are not woken", "part", part)
		if err := r.release(ctx, deleted); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to remove the finalizer of a part that is being replaced", "part", part)
		}
	}
	return result
}

// isDeleted reports whether a part is deleted or about to be. It records the deletion of
// such a part, and adds the finalizer to any other one.
func (r *Runner) isDeleted(ctx context.Context, part part, now time.Time) bool {
	logger := klog.FromContext(ctx)
	known := r.deletions[part.what()]
	meta, err := part.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		switch {
		case !r.seen[part.what()]:
			delete(r.deletions, part.what())
			return false
		case known == nil:
			r.deletions[part.what()] = &deletion{since: now}
		}
		return true
	case err != nil:
		logger.V(2).Info("Failed to read a part of the installation", "part", part.what(), "err", err)
		return false
	case !meta.DeletionTimestamp.IsZero():
		if known == nil || known.uid != meta.UID {
			// It may have been back meanwhile.
			r.deletions[part.what()] = &deletion{uid: meta.UID, since: now}
		}
		return true
	}
	delete(r.deletions, part.what())
	r.seen[part.what()] = true
	if part.patch == nil || slices.Contains(meta.Finalizers, Finalizer) {
		return false
	}
	if err := setFinalizers(ctx, part, meta, append(slices.Clone(meta.Finalizers), Finalizer)); err != nil {
		logger.V(2).Info("Failed to add the finalizer to a part of the installation", "part", part.what(), "err", err)
	}
	return false
}

func (r *Runner) tearDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	logger.Info("The product is being deleted from the cluster")
	if err := r.options.Teardown(ctx); err != nil {
		logger.Error(err, "Failed to restore the cluster")
	}
	if err := r.release(ctx, r.parts); err != nil {
		logger.Error(err, "Failed to remove the finalizer from the parts of the installation: remove it by hand", "finalizer", Finalizer)
	}
	// What is not there after a deletion is not being deleted.
	clear(r.seen)
	clear(r.deletions)
}

// release removes the finalizers of parts, from all at the same time: the first
// one that is deleted takes the permission to change the others with it.
func (r *Runner) release(ctx context.Context, parts []part) error {
	problems := make([]error, len(parts))
	withFinalizer := map[int]*metav1.ObjectMeta{}
	for i, part := range parts {
		if part.patch == nil {
			continue
		}
		meta, err := part.get(ctx)
		if err != nil && !apierrors.IsNotFound(err) {
			problems[i] = fmt.Errorf("reading the %s: %w", part.what(), err)
		}
		if err == nil && slices.Contains(meta.Finalizers, Finalizer) {
			withFinalizer[i] = meta
		}
	}
	changes := newChanges(len(withFinalizer))
	var releasing sync.WaitGroup
	for i, meta := range withFinalizer {
		releasing.Go(func() {
			ctx, ended := changes.begin(ctx)
			defer ended()
			rest := slices.DeleteFunc(slices.Clone(meta.Finalizers), func(finalizer string) bool { return finalizer == Finalizer })
			problems[i] = setFinalizers(ctx, parts[i], meta, rest)
		})
	}
	releasing.Wait()
	return errors.Join(problems...)
}
