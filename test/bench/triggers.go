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

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// triggersIntervals is how many polling intervals are measured, after one with the first
// evaluation of each object.
const triggersIntervals = 2

// measureTriggers measures the cost of the evaluation of many ElastiServices whose
// triggers query one Prometheus server, each with a query of its own. The scheduler and
// the evaluator are those of the product, in this process. The server is another
// process, which responds at once, so that its cost is not included.
func measureTriggers(ctx context.Context, b *bench) (err error) {
	server, address, err := startQuietPrometheus(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	counts := &evaluationCounts{}
	evaluator := evaluators.NewPrometheus(evaluators.PrometheusOptions{ServerAddress: "http://" + address})
	defer evaluator.CloseIdleConnections()
	idle := leaveAlone{}
	scheduler, err := sleep.New(sleep.Options{
		Evaluators: map[string]evaluators.Evaluator{triggers.TypePrometheus: &countingEvaluator{inner: evaluator, counts: counts}},
		Sleeper:    idle, Waker: idle, Reporter: idle, Recorder: events.NewFakeRecorder(0),
		Metrics: sleep.NewMetrics(prometheus.NewRegistry(), clock.RealClock{}),
	})
	if err != nil {
		return err
	}
	before := heap()
	for number := range b.triggers {
		scheduler.Changed(nil, triggeredElastiService(number))
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- scheduler.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()

	if err := pause(ctx, sleep.DefaultPollingInterval+5*time.Second); err != nil {
		return err
	}
	evaluations, used, started := counts.evaluations.Load(), cpuTime(), time.Now()
	if err := pause(ctx, triggersIntervals*sleep.DefaultPollingInterval); err != nil {
		return err
	}
	elapsed := time.Since(started).Seconds()
	b.set("triggers_10k_evaluations_per_second", float64(counts.evaluations.Load()-evaluations)/elapsed)
	b.set("triggers_10k_cpu_percent", 100*(cpuTime()-used).Seconds()/elapsed)
	b.set("triggers_10k_heap_mib", float64(heap()-before)/(1<<20))
	if unknown := counts.unknown.Load(); unknown > 0 {
		return fmt.Errorf("%d evaluations had no result", unknown)
	}
	queries, err := queriesOf(ctx, address)
	if err != nil {
		return err
	}
	b.set("triggers_10k_queries_per_second", queries/(time.Since(started)+sleep.DefaultPollingInterval+5*time.Second).Seconds())
	return nil
}

func pause(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}

func triggeredElastiService(number int) *v1alpha1.ElastiService {
	name := objectName(number)
	return &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: metav1.Now()},
		Spec: v1alpha1.ElastiServiceSpec{
			Service:        name,
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			Triggers: []v1alpha1.ScaleTrigger{{Type: triggers.TypePrometheus, Metadata: &k8sruntime.RawExtension{
				Raw: fmt.Appendf(nil, `{"query":%q,"threshold":1}`, fmt.Sprintf(`sum(rate(requests_total{service=%q}[1m])) or vector(0)`, name))}}},
		},
		Status: v1alpha1.ElastiServiceStatus{Replicas: 1, ReadyReplicas: 1, Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady},
			{Type: v1alpha1.ConditionTargetFound, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonFound},
		}},
	}
}

// leaveAlone does nothing.
type leaveAlone struct{}

func (leaveAlone) Sleep(context.Context, *v1alpha1.ElastiService) error                { return nil }
func (leaveAlone) KeepAwake(context.Context, *v1alpha1.ElastiService) error            { return nil }
func (leaveAlone) Wake(context.Context, *v1alpha1.ElastiService, string) error         { return nil }
func (leaveAlone) Report(context.Context, *v1alpha1.ElastiService, sleep.Report) error { return nil }

// evaluationCounts are the numbers of evaluations, and of those without a result.
type evaluationCounts struct{ evaluations, unknown atomic.Int64 }

type countingEvaluator struct {
	inner  evaluators.Evaluator
	counts *evaluationCounts
}

func (e *countingEvaluator) Evaluate(ctx context.Context, subject evaluators.Subject) (evaluators.Result, error) {
	result, err := e.inner.Evaluate(ctx, subject)
	if err == nil {
		e.counts.evaluations.Add(1)
		if result.State == evaluators.Unknown && ctx.Err() == nil {
			e.counts.unknown.Add(1)
		}
	}
	return result, err
}

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// startQuietPrometheus starts this program as a server on a port of loopback.
func startQuietPrometheus(ctx context.Context) (*exec.Cmd, string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("finding this program: %w", err)
	}
	server := exec.CommandContext(ctx, program, "-quiet-prometheus=127.0.0.1:0")
	server.Stderr = os.Stderr
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := server.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := server.Start(); err != nil {
		return nil, "", fmt.Errorf("starting the Prometheus server: %w", err)
	}
	address, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("waiting for the Prometheus server: %w", err), server.Wait())
	}
	return server, strings.TrimSpace(address), nil
}

// serveQuietPrometheus responds to every query with 0, and to that for the uptime with 1.
// It returns the number of queries at /queries, and prints its address.
func serveQuietPrometheus(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	var received atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/queries", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, received.Load()) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		received.Add(1)
		value := "0"
		if strings.HasPrefix(r.FormValue("query"), "min_over_time(") {
			value = "1"
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,%q]}]}}`, value)
	})
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(listener)
}

func queriesOf(ctx context.Context, address string) (queries float64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/queries", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := fmt.Fscan(response.Body, &queries); err != nil {
		return 0, fmt.Errorf("reading the number of queries: %w", err)
	}
	return queries, nil
}
