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

package elastiservice

import (
	"context"

	"k8s.io/apiserver/pkg/warning"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// clusterWarnings looks up what in the cluster does not fit an ElastiService while
// the object is being written, so that the write does not wait for lookups that it
// does not depend on. It is used by the goroutine of one write.
type clusterWarnings struct {
	warner Warner
	// cancel and found are those of the last lookup, if any.
	cancel context.CancelFunc
	found  chan []string
}

type clusterWarningsKey struct{}

// withClusterWarnings returns a context in which the strategy begins lookups
// instead of waiting for them. The caller calls stop when the write has ended.
func withClusterWarnings(ctx context.Context, warner Warner) (context.Context, *clusterWarnings) {
	warnings := &clusterWarnings{warner: warner}
	return context.WithValue(ctx, clusterWarningsKey{}, warnings), warnings
}

func clusterWarningsFrom(ctx context.Context) *clusterWarnings {
	warnings, _ := ctx.Value(clusterWarningsKey{}).(*clusterWarnings)
	return warnings
}

// begin begins a lookup. A write that is retried begins a new one.
func (w *clusterWarnings) begin(ctx context.Context, elastiService *elasti.ElastiService) {
	w.stop()
	if w.warner == nil {
		return
	}
	ctx, w.cancel = context.WithCancel(ctx)
	found := make(chan []string, 1)
	w.found = found
	// The write continues to change the object.
	elastiService = elastiService.DeepCopy()
	go func() { found <- w.warner.Warnings(ctx, elastiService) }()
}

// add waits for the lookup and adds what it found to the response.
func (w *clusterWarnings) add(ctx context.Context) {
	if w.found == nil {
		return
	}
	for _, text := range <-w.found {
		warning.AddWarning(ctx, "", text)
	}
	w.found = nil
}

// stop ends the lookup, if there is one, and waits for its end.
func (w *clusterWarnings) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	if w.found != nil {
		<-w.found
	}
	w.cancel, w.found = nil, nil
}
