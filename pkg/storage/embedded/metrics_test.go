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

package embedded

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
)

// gauges returns the values of all metrics.
func gauges(t *testing.T, gatherer prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		values[family.GetName()] = family.GetMetric()[0].GetGauge().GetValue()
	}
	return values
}

func TestMetricsFollowTheStore(t *testing.T) {
	const quota = 16 << 20
	var free atomic.Int64
	free.Store(1 << 30)
	server := startMaintained(t, Options{DataDir: t.TempDir(), quota: quota, volume: func() (int64, int64, error) { return 4 << 30, free.Load(), nil }})
	registry := prometheus.NewRegistry()
	RegisterMetrics(registry, server)
	before := gauges(t, registry)
	if before["elasti_operator_store_quota_bytes"] != quota || before["elasti_operator_store_rejects_writes"] != 0 {
		t.Errorf("an empty store has the metrics %v", before)
	}
	large := strings.Repeat("value", 100_000)
	for i := range 10 {
		put(t, server, fmt.Sprintf("key%d", i), large)
	}
	await := func(what string, reached func(values map[string]float64) bool) {
		t.Helper()
		var last map[string]float64
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			last = gauges(t, registry)
			return reached(last), nil
		})
		if err != nil {
			t.Fatalf("waited in vain until %s: %v", what, last)
		}
	}
	const used, size = "elasti_operator_store_used_bytes", "elasti_operator_store_bytes"
	await("the store has grown", func(values map[string]float64) bool {
		return values[used] > before[used]+5_000_000 && values[size] >= values[used]
	})
	free.Store(0)
	await("writes are rejected", func(values map[string]float64) bool { return values["elasti_operator_store_rejects_writes"] == 1 })
	free.Store(1 << 30)
	await("writes are accepted again", func(values map[string]float64) bool { return values["elasti_operator_store_rejects_writes"] == 0 })
}
