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
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestSchedulerMetrics(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		f.create("awake", nil)
		f.create("unused", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Spec.Triggers = nil
			elastiService.Spec.MinTargetReplicas = ptr.To[int32](2)
			elastiService.Status.Replicas = 0
		})
		pass(time.Minute)
		f.scale("shop", 0)
		pass(time.Minute)
		f.scale("shop", 5)
		pass(time.Minute)
		f.scale("shop", 0)
		pass(time.Minute)
		f.delete("unused")
		want := `
# HELP elasti_operator_asleep Whether the target of an ElastiService sleeps: 1 if it does, 0 otherwise.
# TYPE elasti_operator_asleep gauge
elasti_operator_asleep{crd_name="awake",namespace="shop"} 0
elasti_operator_asleep{crd_name="shop",namespace="shop"} 1
# HELP elasti_operator_asleep_seconds_total Seconds that the target of an ElastiService has slept.
# TYPE elasti_operator_asleep_seconds_total counter
elasti_operator_asleep_seconds_total{crd_name="awake",namespace="shop"} 0
elasti_operator_asleep_seconds_total{crd_name="shop",namespace="shop"} 120
# HELP elasti_operator_replica_seconds_saved_total Seconds that the target of an ElastiService has slept, times the replicas that it had before.
# TYPE elasti_operator_replica_seconds_saved_total counter
elasti_operator_replica_seconds_saved_total{crd_name="awake",namespace="shop"} 0
elasti_operator_replica_seconds_saved_total{crd_name="shop",namespace="shop"} 480
`
		synctest.Wait()
		if err := testutil.GatherAndCompare(f.registry, strings.NewReader(want), "elasti_operator_asleep", "elasti_operator_asleep_seconds_total", "elasti_operator_replica_seconds_saved_total"); err != nil {
			t.Error(err)
		}
	})
}

// What a pod requests counts from when it is known, also when it changes while
// the target sleeps.
func TestRequestsSaved(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		key := types.NamespacedName{Namespace: "shop", Name: "shop"}
		f.scheduler.Requests(key, 9, 9) // The ElastiService does not exist yet.
		f.create("shop", nil)
		f.scheduler.Requests(key, 0.5, 1000)
		pass(time.Minute)
		f.scale("shop", 0)
		pass(time.Minute)
		f.scheduler.Requests(key, 1, 2000)
		f.scheduler.Requests(key, 1, 2000)
		pass(time.Minute)
		f.scale("shop", 5)
		pass(time.Minute)
		want := `
# HELP elasti_operator_cpu_core_seconds_saved_total CPU cores that the replicas which an ElastiService saved request, times the seconds that its target has slept.
# TYPE elasti_operator_cpu_core_seconds_saved_total counter
elasti_operator_cpu_core_seconds_saved_total{crd_name="shop",namespace="shop"} 270
# HELP elasti_operator_memory_byte_seconds_saved_total Bytes of memory that the replicas which an ElastiService saved request, times the seconds that its target has slept.
# TYPE elasti_operator_memory_byte_seconds_saved_total counter
elasti_operator_memory_byte_seconds_saved_total{crd_name="shop",namespace="shop"} 540000
`
		synctest.Wait()
		if err := testutil.GatherAndCompare(f.registry, strings.NewReader(want), "elasti_operator_cpu_core_seconds_saved_total", "elasti_operator_memory_byte_seconds_saved_total"); err != nil {
			t.Error(err)
		}
	})
}
