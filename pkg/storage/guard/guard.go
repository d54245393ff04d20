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

// Package guard keeps a server from working on another store than the one that its
// installation uses: on an empty volume that was mounted in the place of the right
// one, on the etcd of another cluster, on a CustomResourceDefinition that was created
// again. To such a server all ElastiServices would be deleted.
//
// A store has an identity, which is stored in it, beside the objects. The
// installation has a Record in the host cluster of which store it uses, made when a
// store is first used. The Guard of a server compares the two: before the first
// access to the objects, and again and again afterwards. Storages that the Guard has
// wrapped are made when the store is the recorded one. They return errors until then,
// and after it was found that the store is another one.
//
// Which store an installation uses is changed on purpose only: by a server that is
// started with the identity of the store that it may give up, or by a copy of the store,
// which has the identity of the original.
//
// It knows neither the kind of the store nor the types of the objects. Begin with Guard.
package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// checkInterval is how often a store is checked that is the recorded one, and
	// retryInterval how often while that is not known.
	checkInterval = 10 * time.Second
	retryInterval = time.Second
	// checkTimeout bounds one check.
	checkTimeout = 10 * time.Second
	// readTimeout is how long the watch caches of a store have for their first list
	// until that is tried again with new ones.
	readTimeout = 30 * time.Second
	// readyInterval is how often it is checked whether they have it.
	readyInterval = 20 * time.Millisecond
)

// Unrecorded stands for the identity of a store of which there is no record.
const Unrecorded = "unrecorded"

// incompletePrefix is what the identity of a store begins with that is being made a
// copy of another one.
const incompletePrefix = "incomplete-copy-of-"

// Incomplete returns the identity of an incomplete copy of a store.
func Incomplete(identity string) string { return incompletePrefix + identity }

// IsIncomplete reports whether an identity is that of an incomplete copy.
func IsIncomplete(identity string) bool { return strings.HasPrefix(identity, incompletePrefix) }

// NewIdentity returns the identity of a new store.
func NewIdentity() string { return string(uuid.NewUUID()) }

// ErrChanged says that an identity is not the one that was to be replaced.
var ErrChanged = errors.New("it was changed by another process")

// Store is where the identity of a store is stored. It is safe for concurrent use.
type Store interface {
	// Identity returns the identity of the store. It is empty if the store has none.
	Identity(ctx context.Context) (string, error)
	// ReplaceIdentity replaces an identity, or none if it is empty, by another one. It
	// returns ErrChanged when the store has a different one.
	ReplaceIdentity(ctx context.Context, from, to string) error
	// IsEmpty reports whether the store has no objects.
	IsEmpty(ctx context.Context) (bool, error)
}

// Recorder is where the installation records which store it uses. It is safe for
// concurrent use.
type Recorder interface {
	// Recorded returns the identity of the store that the installation uses. It is
	// empty if none was used yet.
	Recorded(ctx context.Context) (string, error)
	// Record replaces the recorded identity, or none if it is empty, by another one. It
	// returns ErrChanged when a different one is recorded.
	Record(ctx context.Context, from, to string) error
	// String returns where that is, for messages.
	String() string
}

// WrongStoreError says that a store is not the one that the installation uses.
type WrongStoreError struct {
	message string
}

func (e *WrongStoreError) Error() string { return e.message }

// Options configure a Guard. Fields without a default are required.
type Options struct {
	// Store is the store of this server.
	Store Store
	// Recorder has the identity of the store of the installation.
	Recorder Recorder
	// Accept is the identity of a recorded store in whose place the store of this
	// server is accepted. Empty means that none is given up, Unrecorded that this may be
	// one of which there is no record.
	Accept string
	// Evidence returns what shows that objects were stored for this installation. It is
	// called when the store is empty and none is recorded. An empty result means that
	// there is none. Nil means the same.
	Evidence func(ctx context.Context) (string, error)
	// Clock is the time. Defaults to the real clock.
	Clock clock.Clock
}

// Guard checks the store of a server. Make it with New and run it once. It is safe for
// concurrent use.
type Guard struct {
	options Options

	mu sync.Mutex
	// problem is why the store must not be used. Nil while it may be.
	problem error
	// begun says that the store was the recorded one once.
	begun bool
	// changed is closed when problem has become nil, or has become an error.
	changed chan struct{}
	// storages are those that were wrapped. Guarded by mu; they have locks of their own.
	storages []*guardedStorage
}

// errNotChecked is the problem before the first check.
var errNotChecked = errors.New("it is not known yet whether the store is the one that this installation uses")

// New returns a guard. Until it runs, the store must not be used.
func New(options Options) *Guard {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Guard{options: options, problem: errNotChecked, changed: make(chan struct{})}
}

// Run checks the store until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	for {
		pause := checkInterval
		if err := g.sync(ctx); err != nil {
			pause = retryInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-g.options.Clock.After(pause):
		}
	}
}

// Problem returns why the store must not be used, or nil while it may be.
func (g *Guard) Problem() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.problem
}

// NotBegun returns why the store could not be used since the start of the server, or
// nil once it could.
func (g *Guard) NotBegun() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun {
		return nil
	}
	return g.problem
}

// While calls run while the store may be used, each time with a context that ends when it
// may not be used any more. It returns when ctx has ended, or when run has ended by itself,
// with its error.
func (g *Guard) While(ctx context.Context, run func(ctx context.Context) error) error {
	for {
		ended, ok := g.await(ctx)
		if !ok {
			return nil
		}
		stopped, err := runUntil(ctx, ended, run)
		if ctx.Err() != nil || !stopped {
			return err
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed at the work on a store that may not be used any more")
		}
	}
}

// await returns when the store may be used, with a channel that is closed when it may not
// any more. The second result is false when ctx has ended.
func (g *Guard) await(ctx context.Context) (ended <-chan struct{}, ok bool) {
	for {
		g.mu.Lock()
		problem, changed := g.problem, g.changed
		g.mu.Unlock()
		if ctx.Err() != nil {
			return nil, false
		}
		if problem == nil {
			return changed, true
		}
		select {
		case <-ctx.Done():
			return nil, false
		case <-changed:
		}
	}
}

// runUntil calls run with a context that ends with ctx and when a channel is closed. It
// reports whether the context ended before run did.
func runUntil(ctx context.Context, ended <-chan struct{}, run func(ctx context.Context) error) (stopped bool, err error) {
	runCtx, stop := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-ended:
			stop()
		case <-runCtx.Done():
		}
	})
	err = run(runCtx)
	stopped = runCtx.Err() != nil
	stop()
	waiting.Wait()
	return stopped, err
}

// sync checks the store once, and opens or closes the storages.
func (g *Guard) sync(ctx context.Context) error {
	err := g.check(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	inUse := g.Problem() == nil
	wrong := &WrongStoreError{}
	switch {
	case inUse && err == nil:
		return nil
	case inUse && !errors.As(err, &wrong):
		// A store that cannot be reached is still the same one.
		klog.FromContext(ctx).V(2).Info("Failed to check whether the store is the recorded one, will retry", "err", err)
		return err
	case err == nil:
		err = g.open(ctx)
	}
	if err != nil {
		g.close()
	}
	g.set(ctx, err)
	return err
}

// set records the result of a check.
func (g *Guard) set(ctx context.Context, problem error) {
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	before := g.problem
	g.problem = problem
	g.begun = g.begun || problem == nil
	if (before == nil) != (problem == nil) {
		close(g.changed)
		g.changed = make(chan struct{})
	}
	g.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case problem == nil && before != nil:
		logger.Info("The store is the one that this installation uses")
	case problem != nil && (before == nil || before.Error() != problem.Error()):
		logger.Error(problem, "The store is not used, will retry")
	}
}

// open makes the storages that are not made yet, and returns when all can be read.
func (g *Guard) open(ctx context.Context) error {
	for _, storage := range g.wrapped() {
		if err := storage.open(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, storage := range g.wrapped() {
		var last error
		err := wait.PollUntilContextCancel(ctx, readyInterval, true, func(context.Context) (bool, error) {
			last = storage.builtReadiness()
			return last == nil, nil
		})
		if err != nil {
			return fmt.Errorf("the store cannot be read: %w", last)
		}
	}
	return nil
}

func (g *Guard) close() {
	for _, storage := range g.wrapped() {
		storage.close()
	}
}

func (g *Guard) wrapped() []*guardedStorage {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.storages[:len(g.storages):len(g.storages)]
}

// check compares the identity of the store with the recorded one. A store that is used
// first gets an identity, and is recorded.
func (g *Guard) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	recorded, err := g.options.Recorder.Recorded(ctx)
	if err != nil {
		return err
	}
	identity, err := g.options.Store.Identity(ctx)
	if err != nil {
		return err
	}
	original, incomplete := strings.CutPrefix(identity, incompletePrefix)
	switch {
	case incomplete:
		return &WrongStoreError{fmt.Sprintf("the store is an incomplete copy of the store %s: "+
			"repeat the command \"elasti-apiserver storage copy\" that was interrupted, it continues", original)}
	case identity != "" && identity == recorded:
		return nil
	case identity == "" && recorded == "":
		if err := g.checkFirst(ctx); err != nil {
			return err
		}
		return g.use(ctx, "", "")
	case recorded == "" || recorded == g.options.Accept:
		return g.use(ctx, recorded, identity)
	case identity == "":
		return &WrongStoreError{fmt.Sprintf("the store is empty, and this installation uses the store %s (recorded in %s). %s", recorded, g.options.Recorder, g.howToProceed(recorded))}
	default:
		return &WrongStoreError{fmt.Sprintf("the store is %s, and this installation uses the store %s (recorded in %s). %s", identity, recorded, g.options.Recorder, g.howToProceed(recorded))}
	}
}

// checkFirst returns an error if a store that would be the first one of the installation
// is not: versions without records have used another one.
func (g *Guard) checkFirst(ctx context.Context) error {
	if g.options.Evidence == nil || g.options.Accept == Unrecorded {
		return nil
	}
	empty, err := g.options.Store.IsEmpty(ctx)
	if err != nil || !empty {
		return err
	}
	evidence, err := g.options.Evidence(ctx)
	if err != nil || evidence == "" {
		return err
	}
	return &WrongStoreError{fmt.Sprintf("the store is empty, and this installation uses another one, of which there is no record yet (%s). %s", evidence, g.howToProceed(Unrecorded))}
}

func (g *Guard) howToProceed(recorded string) string {
	return "Let the server have that store: correct --storage, --data-dir or --etcd-servers, mount its volume, restore its backup, " +
		"or copy it here with \"elasti-apiserver storage copy\". To give up what is stored there, start the server with --accept-new-store=" + recorded
}

// use records that the installation uses the store of this server from now on. When
// another server is faster, the next check decides.
func (g *Guard) use(ctx context.Context, recorded, identity string) error {
	if identity == "" {
		identity = NewIdentity()
		if err := g.options.Store.ReplaceIdentity(ctx, "", identity); err != nil {
			return fmt.Errorf("giving the store an identity: %w", err)
		}
	}
	if err := g.options.Recorder.Record(ctx, recorded, identity); err != nil {
		return fmt.Errorf("recording the identity of the store: %w", err)
	}
	klog.FromContext(ctx).Info("This installation uses the store from now on", "identity", identity, "before", recorded, "recordedIn", g.options.Recorder.String())
	return nil
}
