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
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/warning"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// slowWarner finds after a second that the Service does not exist.
type slowWarner struct{}

func (slowWarner) Warnings(ctx context.Context, elastiService *elasti.ElastiService) []string {
	select {
	case <-time.After(time.Second):
		return []string{"there is no Service " + elastiService.Spec.Service}
	case <-ctx.Done():
		return nil
	}
}

// recorder keeps the warnings of the response to a write.
type recorder struct{ texts []string }

func (r *recorder) AddWarning(_, text string) { r.texts = append(r.texts, text) }

// warned returns the warnings of a write that takes no time.
func warned(t *testing.T, write func(ctx context.Context)) []string {
	t.Helper()
	recorder := &recorder{}
	ctx, warnings := withClusterWarnings(warning.WithWarningRecorder(t.Context(), recorder), slowWarner{})
	defer warnings.stop()
	write(ctx)
	warnings.add(ctx)
	return recorder.texts
}

func TestWarningsAreAboutChangesOfTheSpec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		strategy := newStrategy(runtime.NewScheme())
		labeled, moved := stored(), stored()
		labeled.Labels, moved.Spec.Service = nil, "other"
		for _, test := range []struct {
			name  string
			write func(ctx context.Context)
			want  []string
		}{
			{"create", func(ctx context.Context) { strategy.WarningsOnCreate(ctx, stored()) }, []string{"there is no Service cart"}},
			{"change of labels", func(ctx context.Context) { strategy.WarningsOnUpdate(ctx, labeled, stored()) }, nil},
			{"change of the spec", func(ctx context.Context) { strategy.WarningsOnUpdate(ctx, moved, stored()) }, []string{"there is no Service other"}},
			{"change of the status", func(ctx context.Context) { (statusStrategy{strategy}).WarningsOnUpdate(ctx, moved, stored()) }, nil},
			{"retried with another spec", func(ctx context.Context) {
				strategy.WarningsOnCreate(ctx, moved)
				strategy.WarningsOnCreate(ctx, stored())
			}, []string{"there is no Service cart"}},
		} {
			if got := warned(t, test.write); !slices.Equal(got, test.want) {
				t.Errorf("%s: got %q, want %q", test.name, got, test.want)
			}
		}
	})
}

// A lookup runs while the object is written.
func TestWritesDoNotWaitForWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		got := warned(t, func(ctx context.Context) {
			newStrategy(runtime.NewScheme()).WarningsOnCreate(ctx, stored())
			if waited := time.Since(start); waited != 0 {
				t.Errorf("the write waited %s", waited)
			}
			<-time.After(900 * time.Millisecond)
		})
		if len(got) != 1 || time.Since(start) != time.Second {
			t.Errorf("got %q after %s", got, time.Since(start))
		}
	})
}

func TestFailedWriteEndsTheLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, warnings := withClusterWarnings(t.Context(), slowWarner{})
		newStrategy(runtime.NewScheme()).WarningsOnCreate(ctx, stored())
		warnings.stop()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("a write that failed waited %s for its warnings", waited)
		}
	})
}

func TestThereAreNoClusterWarningsWithoutAWarner(t *testing.T) {
	ctx, warnings := withClusterWarnings(t.Context(), nil)
	newStrategy(runtime.NewScheme()).WarningsOnCreate(ctx, stored())
	warnings.add(ctx)
	warnings.stop()
}
