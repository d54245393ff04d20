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
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/bench/scale"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	scaleObjects = 10_000
	// scaleChanges is how many of them change in each direction while the
	// server is down.
	scaleChanges = 500
	scaleTimeout = 20 * time.Minute
	// scaleRest is how long nothing happens.
	scaleRest = time.Minute
	// scaleWritesShown is how many writes are shown that should not be.
	scaleWritesShown = 20
)

// scaleTenThousand measures one server with 10,000 ElastiServices, half of
// whose targets sleep, on a real kube-apiserver without any pods.
func scaleTenThousand(ctx context.Context, b *bench) (err error) {
	r := b.report
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	control, err := environment.StartForMeasuring(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, control.Stop(context.WithoutCancel(ctx)), control.Remove()) }()

	stage := scale.New(control, scaleObjects)
	began := time.Now()
	if err := stage.Prepare(ctx); err != nil {
		return err
	}
	fmt.Printf("  %d Services and Deployments after %s\n", scaleObjects, time.Since(began).Round(time.Second))
	began = time.Now()
	if err := stage.Create(ctx); err != nil {
		return err
	}
	if err := stage.AwaitRight(ctx); err != nil {
		return err
	}
	r.durations("all ElastiServices new → all in the right mode", []time.Duration{time.Since(began)})
	if err := r.processMemory("with all of them new", control.Server.Process().PID()); err != nil {
		return err
	}

	if err := control.Server.Stop(ctx); err != nil {
		return err
	}
	if err := stage.Change(ctx, scaleChanges); err != nil {
		return err
	}
	began = time.Now()
	if err := control.Server.Start(ctx); err != nil {
		return err
	}
	r.durations("server started → its API is available", []time.Duration{time.Since(began)})
	if err := stage.AwaitRight(ctx); err != nil {
		return err
	}
	reconciled := time.Since(began)
	r.durations("server started → all in the right mode", []time.Duration{reconciled})
	r.set("scale_10k_reconciled_s", reconciled.Seconds())

	pid := control.Server.Process().PID()
	if err := r.processMemory("after the start", pid); err != nil {
		return err
	}
	if err := r.rest(ctx, stage, pid); err != nil {
		return err
	}
	memory, err := scale.MemoryOf(pid)
	if err != nil {
		return err
	}
	r.set("scale_10k_mib", mebibytes(memory.Resident))
	r.set("scale_10k_anon_mib", mebibytes(memory.Anonymous))
	return r.processMemory("at rest", pid)
}

// rest adds what the server does while nothing changes.
func (r *report) rest(ctx context.Context, stage *scale.Stage, pid int) error {
	rest, err := stage.Rest(ctx, pid, scaleRest)
	if err != nil {
		return err
	}
	r.set("scale_10k_idle_cpu_percent", rest.CPUPercent)
	r.set("scale_10k_idle_writes", float64(len(rest.Writes)))
	for _, write := range rest.Writes[:min(scaleWritesShown, len(rest.Writes))] {
		fmt.Println("  written at rest:", write)
	}
	return nil
}

// processMemory adds rows with the resident memory of a process: what it
// allocated, and what it mapped of files, which the system can take back.
func (r *report) processMemory(when string, pid int) error {
	memory, err := scale.MemoryOf(pid)
	if err != nil {
		return err
	}
	r.row("anonymous memory "+when, "MiB", []float64{mebibytes(memory.Anonymous)})
	r.row("mapped files "+when, "MiB", []float64{mebibytes(memory.Files)})
	return nil
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
