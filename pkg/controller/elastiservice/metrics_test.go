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
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestErrorsBecomeBoundedLabels(t *testing.T) {
	for err, want := range map[error]string{
		nil:                 errorNone,
		errors.New("other"): errorOther,
		apierrors.NewConflict(deploymentsResource.GroupResource(), "x", nil):                       errorConflict,
		fmt.Errorf("a: %w", apierrors.NewForbidden(deploymentsResource.GroupResource(), "x", nil)): errorForbidden,
		apierrors.NewNotFound(deploymentsResource.GroupResource(), "x"):                            errorNotFound,
	} {
		if got := errorClass(err); got != want || !slices.Contains(errorClasses, got) {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}

// What a controller observes is in its metrics until it stops, and not afterwards: another
// replica observes it then.
func TestMetricsFollowTheController(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	registry := prometheus.NewPedanticRegistry()
	c.options.Metrics = NewMetrics(registry)
	broken := cartElastiService()
	broken.Name, broken.UID, broken.Spec.Service, broken.Spec.ScaleTargetRef.Name = "till", "till-uid", "till", "till"
	c.create(cartElastiService())
	c.create(broken)
	observed := func(leading, ports, limit int, series string) func() string {
		want := fmt.Sprintf(`
# HELP elasti_operator_leading Whether this replica runs the controller: 1 if it does, 0 otherwise. One of all replicas does.
# TYPE elasti_operator_leading gauge
elasti_operator_leading %d
%s# HELP elasti_operator_proxy_ports Number of proxy ports that ElastiServices have.
# TYPE elasti_operator_proxy_ports gauge
elasti_operator_proxy_ports %d
# HELP elasti_operator_proxy_ports_limit Number of proxy ports that there are.
# TYPE elasti_operator_proxy_ports_limit gauge
elasti_operator_proxy_ports_limit %d
`, leading, series, ports, limit)
		names := []string{"elasti_operator_leading", "elasti_operator_proxy_ports", "elasti_operator_proxy_ports_limit"}
		if series != "" {
			names = append(names, "elasti_operator_mode", "elasti_operator_ready")
		}
		return func() string {
			if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
				return err.Error()
			}
			return ""
		}
	}
	c.eventually(observed(0, 0, 0, ""))
	stop := c.start()
	c.eventually(observed(1, 2, 100, `# HELP elasti_operator_mode Mode of an ElastiService: 1 for proxy, 0 for serve.
# TYPE elasti_operator_mode gauge
elasti_operator_mode{crd_name="cart",namespace="shop"} 1
elasti_operator_mode{crd_name="till",namespace="shop"} 0
# HELP elasti_operator_ready Whether the condition Ready of an ElastiService is true: 1 if it is, 0 otherwise.
# TYPE elasti_operator_ready gauge
elasti_operator_ready{crd_name="cart",namespace="shop"} 1
elasti_operator_ready{crd_name="till",namespace="shop"} 0
`))
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if written := testutil.ToFloat64(c.options.Metrics.process.statusWrites.WithLabelValues(errorNone)); written < 2 {
			return fmt.Sprintf("the statuses of both, %v were written", written)
		}
		return ""
	})
	stop()
	if problem := observed(0, 0, 0, "")(); problem != "" {
		t.Error(problem)
	}
	if left := testutil.CollectAndCount(c.options.Metrics.mode) + testutil.CollectAndCount(c.options.Metrics.ready); left != 0 {
		t.Errorf("a controller that has stopped has %d series of ElastiServices", left)
	}
}

func TestQueuesAndFailedStatusesAreCounted(t *testing.T) {
	m := NewMetrics(prometheus.NewPedanticRegistry())
	m.queueLength(queueSync)(7)
	m.queueLength(queueStatus)(3)
	m.statusWritten(apierrors.NewForbidden(deploymentsResource.GroupResource(), "x", nil))
	m.isReady(types.NamespacedName{Namespace: shop, Name: "cart"}, true)
	for _, check := range []struct {
		metric prometheus.Collector
		want   float64
	}{
		{m.process.queued.WithLabelValues(queueSync), 7},
		{m.process.queued.WithLabelValues(queueStatus), 3},
		{m.process.statusWrites.WithLabelValues(errorForbidden), 1},
		{m.process.statusWrites.WithLabelValues(errorNone), 0},
	} {
		if got := testutil.ToFloat64(check.metric); got != check.want {
			t.Errorf("got %v, want %v", got, check.want)
		}
	}
	m.forget(types.NamespacedName{Namespace: shop, Name: "cart"})
	if left := testutil.CollectAndCount(m.ready); left != 0 {
		t.Errorf("a deleted ElastiService has %d series", left)
	}
	m.stopped()
	if got := testutil.ToFloat64(m.process.queued.WithLabelValues(queueSync)); got != 0 {
		t.Errorf("%v wait in the queue of a controller that has stopped", got)
	}
}
