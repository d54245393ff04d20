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

package storage

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

func dynamicClient(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// exported is a test of k8s.io/apiserver.
type exported struct {
	name string
	run  func(ctx context.Context, t *testing.T, store *stack)
	// setup is how its storage is made, but for the watch cache.
	setup setup
	// alone says that it counts versions, so that nothing else may write.
	alone bool
}

// plain is a test that needs nothing but a storage.
func plain(name string, run func(ctx context.Context, t *testing.T, store storage.Interface)) exported {
	return exported{name: name, run: func(ctx context.Context, t *testing.T, store *stack) { run(ctx, t, store) }}
}

// alone is a test that counts versions.
func alone(name string, run func(ctx context.Context, t *testing.T, store storage.Interface)) exported {
	test := plain(name, run)
	test.alone = true
	return test
}

func noValidation(context.Context, *testing.T, string) {}

func noCalls(*testing.T, uint64, uint64) {}

// everywhere are the tests that hold with and without a watch cache.
//
// The tests of k8s.io/apiserver that are missing here and below do not apply:
//   - CreateWithTTL, GuaranteedUpdateWithTTL: no object of this API server expires.
//   - Stats, with sizes: they are not estimated, see EnableResourceSizeEstimation.
//   - CompactRevision: the host cluster does not tell.
//   - DeleteWithConflictAndMissingExpectedTransformOrDecodeError,
//     DeleteExpectedTransformOrDecodeError,
//     DeleteWithSuggestionAndMissingExpectedTransformOrDecodeError,
//     GetListWithErrorAggregation, WatchWithUnsafeDelete: they are about the unsafe
//     deletion of damaged objects, an alpha feature of etcd storages.
//   - GuaranteedUpdateChecksStoredData: it is about objects that an encryption of
//     this API server has to write anew. The host cluster encrypts.
//   - WatchFromZero: it ends with a compaction, which the watch cache of the host
//     cluster hides. See TestWatchesBeginWithWhatIsStored and
//     TestExpiredVersionsAreReported.
//   - ListResourceVersionMatch: it creates an object with each read of one, and the
//     result of a creation is read here. See TestListsAreOfTheRequestedVersion.
//   - GetListWithoutErrorAggregation, TransformationFailure, WatchError,
//     WatchErrorIsBlockingFurtherEvents: they expect that one damaged object ends
//     lists and watches. Here it is left out and reported, see damaged_test.go.
func everywhere() []exported {
	return []exported{
		plain("Create", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestCreate(ctx, t, store, noValidation)
		}),
		plain("CreateWithKeyExist", storagetesting.RunTestCreateWithKeyExist),
		plain("Get", storagetesting.RunTestGet),
		plain("UnconditionalDelete", storagetesting.RunTestUnconditionalDelete),
		plain("ConditionalDelete", storagetesting.RunTestConditionalDelete),
		plain("DeleteWithSuggestion", storagetesting.RunTestDeleteWithSuggestion),
		plain("DeleteWithSuggestionAndConflict", storagetesting.RunTestDeleteWithSuggestionAndConflict),
		plain("DeleteWithConflict", storagetesting.RunTestDeleteWithConflict),
		plain("DeleteWithSuggestionOfDeletedObject", storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
		plain("ValidateDeletionWithSuggestion", storagetesting.RunTestValidateDeletionWithSuggestion),
		plain("ValidateDeletionWithOnlySuggestionValid", storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
		plain("PreconditionalDeleteWithSuggestion", storagetesting.RunTestPreconditionalDeleteWithSuggestion),
		plain("PreconditionalDeleteWithOnlySuggestionPass", storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
		plain("GetListNonRecursive", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, increaseVersion, store)
		}),
		plain("GetListRecursivePrefix", storagetesting.RunTestGetListRecursivePrefix),
		plain("ListPaginationRareObject", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, store, noCalls)
		}),
		plain("ListPaging", storagetesting.RunTestListPaging),
		{name: "NamespaceScopedList", setup: setup{indexed: true}, run: func(ctx context.Context, t *testing.T, store *stack) {
			storagetesting.RunTestNamespaceScopedList(ctx, t, store)
		}},
		plain("GuaranteedUpdateWithConflict", storagetesting.RunTestGuaranteedUpdateWithConflict),
		plain("GuaranteedUpdateWithSuggestionAndConflict", storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		plain("KeySchema", storagetesting.RunTestKeySchema),
		plain("Watch", storagetesting.RunTestWatch),
		plain("DeleteTriggerWatch", storagetesting.RunTestDeleteTriggerWatch),
		plain("WatchFromNonZero", storagetesting.RunTestWatchFromNonZero),
		plain("DelayedWatchDelivery", storagetesting.RunTestDelayedWatchDelivery),
		plain("WatcherTimeout", storagetesting.RunTestWatcherTimeout),
		plain("WatchDeleteEventObjectHaveLatestRV", storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
		plain("WatchInitializationSignal", storagetesting.RunTestWatchInitializationSignal),
		{name: "ClusterScopedWatch", setup: setup{clusterScoped: true, indexed: true}, run: func(ctx context.Context, t *testing.T, store *stack) {
			storagetesting.RunTestClusterScopedWatch(ctx, t, store)
		}},
		{name: "NamespaceScopedWatch", setup: setup{indexed: true}, run: func(ctx context.Context, t *testing.T, store *stack) {
			storagetesting.RunTestNamespaceScopedWatch(ctx, t, store)
		}},
		plain("SendInitialEventsBackwardCompatibility", storagetesting.RunSendInitialEventsBackwardCompatibility),
	}
}

// uncached are the tests that hold without a watch cache only.
func uncached() []exported {
	return []exported{
		alone("ListContinuation", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestListContinuation(ctx, t, store, noCalls)
		}),
		alone("ListContinuationWithFilter", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, store, noCalls)
		}),
		plain("ListInconsistentContinuation", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestListInconsistentContinuation(ctx, t, store, compact)
		}),
		alone("List", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestList(ctx, t, store, compact, false, storagetesting.NewKubernetesRecorder(nil))
		}),
		alone("ConsistentList", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestConsistentList(ctx, t, store, increaseVersion, false, true, false)
		}),
		{name: "GuaranteedUpdate", run: func(ctx context.Context, t *testing.T, store *stack) {
			storagetesting.RunTestGuaranteedUpdate(ctx, t, store, noValidation)
		}},
		plain("WatchContextCancel", storagetesting.RunTestWatchContextCancel),
		plain("WatchDispatchBookmarkEvents", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, store, false)
		}),
		plain("WatchSemantics", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunWatchSemantics(ctx, t, startingAt(t, store))
		}),
		alone("WatchSemanticInitialEventsExtended", storagetesting.RunWatchSemanticInitialEventsExtended),
		alone("WatchListMatchSingle", storagetesting.RunWatchListMatchSingle),
		plain("ProgressNotify", func(ctx context.Context, t *testing.T, store storage.Interface) {
			progressing := progressOnWatch{store}
			storagetesting.RunOptionalTestProgressNotify(ctx, t, progressing, increaseVersion)
		}),
	}
}

// cached are the tests that hold with a watch cache only.
//
// Missing are those that expect a current read to have the version of the last
// write of the test: with a watch cache, each current read writes to the progress
// marker and has the version of that. They are ConsistentList, ListContinuation,
// ListContinuationWithFilter, List, WatchSemanticInitialEventsExtended and
// WatchListMatchSingle. See progress_test.go.
func cached() []exported {
	return []exported{
		plain("WatchDispatchBookmarkEvents", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, store, true)
		}),
		plain("OptionalWatchBookmarksWithCorrectResourceVersion", storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
		plain("WatchSemantics", func(ctx context.Context, t *testing.T, store storage.Interface) {
			storagetesting.RunWatchSemantics(ctx, t, createAwaiting{startingAt(t, store)})
		}),
	}
}

func TestStorageMeetsTheGenericTests(t *testing.T) {
	for _, test := range append(everywhere(), uncached()...) {
		t.Run(test.name, func(t *testing.T) { test.meet(t) })
	}
}

func TestCachedStorageMeetsTheGenericTests(t *testing.T) {
	for _, test := range append(everywhere(), cached()...) {
		test.setup.cached = true
		t.Run(test.name, func(t *testing.T) { test.meet(t) })
	}
}

func (e exported) meet(t *testing.T) {
	t.Helper()
	store := newStack(t, e.setup)
	if e.alone {
		others.Lock()
		t.Cleanup(others.Unlock)
	}
	e.run(t.Context(), t, store)
}

// progressOnWatch requests progress for each watch, as a watch cache does whose
// readers wait.
type progressOnWatch struct {
	storage.Interface
}

func newPod(namespace, name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (s progressOnWatch) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	watching, err := s.Interface.Watch(ctx, key, opts)
	if err == nil {
		err = s.RequestWatchProgress(ctx)
	}
	return watching, err
}
