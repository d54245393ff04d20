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
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// churnWarmUp is how many clients connect and disconnect before memory is measured
	// first, churnClients how many after that: as many as in an hour at 55 a second.
	churnWarmUp  = 20_000
	churnClients = 200_000
	// churnHeldEvery is how many clients there are to one that goes away while
	// its request is held.
	churnHeldEvery = 4
	// churnPoliteEvery is how many clients there are to one of either kind that
	// ends its connection in order. The others reset theirs: a port that ended in
	// order cannot be used again for a minute, and there are not enough.
	churnPoliteEvery = 16
	churnTimeout     = 15 * time.Minute
	// churnReleaseTimeout bounds the wait until the memory of closed connections is released.
	// It is longer than connections to pods are kept.
	churnReleaseTimeout = 5 * time.Second
)

// churn measures the growth of the resolvers' memory after many clients have connected
// and disconnected: most of them after a response, some while they were held.
func churn(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithTimeout(ctx, churnTimeout)
	defer cancel()
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	responding := b.NewApplication(stage.namespace, cluster.ApplicationOptions{
		Name: "responding", Replicas: 1,
		Spec: func(spec *v1alpha1.ElastiServiceSpec) { spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways} },
	})
	holding := b.NewApplication(stage.namespace, cluster.ApplicationOptions{Name: "holding", Arguments: []string{"-start-delay=1h"}})
	err = errors.Join(responding.Create(ctx), holding.Create(ctx),
		responding.AwaitMode(ctx, v1alpha1.ModeProxy), responding.AwaitResolverSlice(ctx, true), responding.AwaitReachable(ctx),
		holding.AwaitAsleep(ctx), holding.AwaitResolverSlice(ctx, true), holding.AwaitReachable(ctx))
	if err != nil {
		return err
	}
	comeAndGo := func(ctx context.Context, number int) error {
		if number%churnHeldEvery == 0 {
			return visit(ctx, holding, false, number%churnPoliteEvery == 0)
		}
		return visit(ctx, responding, true, number%churnPoliteEvery == 1)
	}
	if err := inParallel(ctx, 0, churnWarmUp, comeAndGo); err != nil {
		return err
	}
	before, err := b.memoryAtRest(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := inParallel(ctx, 0, churnClients, comeAndGo); err != nil {
		return err
	}
	took := time.Since(start)
	after, err := b.memoryAtRest(ctx)
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("%d clients came and went", churnClients), "clients/s", []float64{churnClients / took.Seconds()})
	growth := float64(after-before) / (1 << 20)
	b.row("growth of the resident memory of the resolvers", "MiB", []float64{growth})
	b.set("churn_growth_mib", growth)
	return nil
}

// memoryAtRest waits until the memory of closed connections is released, and returns
// the resident memory of the resolvers.
func (b *bench) memoryAtRest(ctx context.Context) (int64, error) {
	timer := time.NewTimer(churnReleaseTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return b.resolverMemory(ctx)
}

// visit opens a connection, sends a request, reads the response with wait, and closes
// the connection, in order or with a reset.
func visit(ctx context.Context, app *cluster.Application, wait, inOrder bool) error {
	connection, err := openRequest(ctx, app.Address+":80")
	if err != nil {
		return err
	}
	defer connection.Close()
	if !inOrder {
		if err := connection.(*net.TCPConn).SetLinger(0); err != nil {
			return err
		}
	}
	if !wait {
		return nil
	}
	if err := connection.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(connection, 1<<10), nil)
	if err != nil {
		return fmt.Errorf("reading the response: %w", err)
	}
	response.Body.Close()
	got := cluster.Response{Status: response.StatusCode, Header: response.Header}
	return got.FromApplication(app.Name)
}
