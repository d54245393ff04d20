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

package sleep

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

// hangingTriggers query a server each, which responds only to the namespace of
// others.
type hangingTriggers struct {
	limiter  *queries.Limiter
	finished atomic.Int32
}

func (h *hangingTriggers) Evaluate(ctx context.Context, subject evaluators.Subject) (evaluators.Result, error) {
	loud := subject.ElastiService.Namespace == "loud"
	query := queries.Query{Namespace: subject.ElastiService.Namespace, Server: subject.ElastiService.Name + string(subject.Trigger.Metadata.Raw)}
	_, err := h.limiter.Do(ctx, query, subject.MaxAge, func(ctx context.Context) (queries.Result, error) {
		if loud {
			<-ctx.Done()
			return queries.Result{}, &queries.Error{Reason: v1alpha1.ReasonServerFailed, Message: "did not respond in time", ServerFault: true}
		}
		return queries.Result{}, nil
	})
	switch {
	case errors.Is(err, queries.ErrBusy):
		return evaluators.Result{}, err
	case err != nil:
		return unknown, ctx.Err()
	}
	h.finished.Add(1)
	return active, nil
}

// 64 ElastiServices of a tenant with 16 triggers each, all at servers that hang,
// keep no trigger of another tenant from being evaluated.
func TestTenantWhoseServersHangDelaysNoOther(t *testing.T) {
	hanging := &hangingTriggers{limiter: queries.NewLimiter(queries.Options{})}
	inBubble(t, func(o *Options) {
		o.Workers = DefaultWorkers
		o.Evaluators = map[string]evaluators.Evaluator{"fake": hanging}
	}, func(t *testing.T, f *fixture) {
		in := func(namespace string, triggers int) func(*v1alpha1.ElastiService) {
			return func(e *v1alpha1.ElastiService) {
				e.Namespace, e.Spec.Triggers = namespace, nil
				for i := range triggers {
					e.Spec.Triggers = append(e.Spec.Triggers, v1alpha1.ScaleTrigger{Type: "fake", Metadata: &runtime.RawExtension{Raw: []byte(fmt.Sprint(i))}})
				}
			}
		}
		for i := range 64 {
			f.create(fmt.Sprintf("loud-%d", i), in("loud", 16))
		}
		const intervals = 20
		pass(2 * testInterval)
		f.create("quiet", in("quiet", 1))
		pass(intervals * testInterval)
		if finished := hanging.finished.Load(); finished < intervals-2 {
			t.Errorf("the trigger of another tenant was evaluated %d times in %d intervals", finished, intervals)
		}
	})
}

// hangingWaker wakes no target of a loud namespace: the calls hang.
type hangingWaker struct{ *fakeCluster }

func (h hangingWaker) Wake(ctx context.Context, elastiService *v1alpha1.ElastiService, message string) error {
	if strings.HasPrefix(elastiService.Namespace, "loud") {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.fakeCluster.Wake(ctx, elastiService, message)
}

// Wakes of some tenants that hang, such as behind a slow admission webhook, do not keep
// the scheduler from the targets of others.
func TestTenantsWhoseWakesHangDelayNoOther(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.trigger.always(active)
		f.scheduler.options.Waker = hangingWaker{f.fakeCluster}
		in := func(namespace string) func(*v1alpha1.ElastiService) {
			return func(e *v1alpha1.ElastiService) {
				e.Namespace, e.Status.Replicas, e.Status.ReadyReplicas = namespace, 0, 0
			}
		}
		for i := range 30 {
			f.create(fmt.Sprintf("loud-%d", i), in(fmt.Sprintf("loud-%d", i%3)))
		}
		pass(2 * testInterval)
		f.create("quiet", in("quiet"))
		pass(2 * testInterval)
		f.want(t, "wake quiet")
	})
}
