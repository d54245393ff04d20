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
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
)

func TestQuotaFitsTheVolume(t *testing.T) {
	for _, test := range []struct {
		volume, quota int64
	}{
		{1 << 30, 256 << 20},
		{8 << 30, 2 << 30},
		{1 << 40, 2 << 30},
	} {
		if quota := quotaFor(test.volume); quota != test.quota {
			t.Errorf("a volume of %d bytes has a quota of %d, want %d", test.volume, quota, test.quota)
		}
	}
}

// The history of what is written again and again takes all of the quota.
func TestStoreAtItsQuotaAcceptsWritesAgainByItself(t *testing.T) {
	server := startMaintained(t, Options{DataDir: t.TempDir(), quota: 16 << 20})
	put(t, server, "kept", "value")
	rejected := false
	large := strings.Repeat("value", 100_000)
	for i := range 200 {
		if err := tryPut(t, server, "key", fmt.Sprintf("%d %s", i, large)); err != nil {
			expectNoSpace(t, err)
			rejected = true
			break
		}
	}
	if !rejected {
		t.Fatal("the store has taken 100 MB of history")
	}
	if value := get(t, server, "kept"); value != "value" {
		t.Errorf("meanwhile the value is %q", value)
	}
	awaitWrite(t, server)
	if value := get(t, server, "kept"); value != "value" {
		t.Errorf("afterwards the value is %q", value)
	}
}

func TestStoreFullOfObjectsAcceptsDeletionsAndThenWrites(t *testing.T) {
	server := startMaintained(t, Options{DataDir: t.TempDir(), quota: 16 << 20})
	large := strings.Repeat("value", 100_000)
	written := 0
	var err error
	for err == nil && written < 200 {
		if err = tryPut(t, server, fmt.Sprintf("key%d", written), large); err == nil {
			written++
		}
	}
	expectNoSpace(t, err)
	if value := get(t, server, "key0"); value != large {
		t.Errorf("meanwhile the value has %d bytes, want %d", len(value), len(large))
	}
	request(t, server, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Delete(ctx, "key", clientv3.WithPrefix())
		return err
	})
	awaitWrite(t, server)
}

func TestFullVolumeRejectsWritesUntilItHasSpace(t *testing.T) {
	dataDir := t.TempDir()
	var free atomic.Int64
	free.Store(1 << 30)
	options := Options{DataDir: dataDir, volume: func() (int64, int64, error) { return 4 << 30, free.Load(), nil }}
	server, stopServer := startStoppable(t, options)
	put(t, server, "kept", "value")
	free.Store(reservedBytes - 1)
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return tryPut(t, server, "key", "value") != nil, nil
	})
	if err != nil {
		t.Fatalf("the store takes writes until the volume is full: %v", err)
	}
	expectNoSpace(t, tryPut(t, server, "key", "value"))
	if value := get(t, server, "kept"); value != "value" {
		t.Errorf("meanwhile the value is %q", value)
	}
	stopServer()

	// It starts on the full volume too.
	server, stopServer = startStoppable(t, options)
	defer stopServer()
	expectNoSpace(t, tryPut(t, server, "key", "value"))
	if value := get(t, server, "kept"); value != "value" {
		t.Errorf("after the restart the value is %q", value)
	}
	free.Store(1 << 30)
	awaitWrite(t, server)
}

// startMaintained starts a store that is maintained until the end of the test.
func startMaintained(t *testing.T, options Options) *Server {
	t.Helper()
	server, stopServer := startStoppable(t, options)
	t.Cleanup(stopServer)
	return server
}

// startStoppable starts a store that is maintained until it is stopped.
func startStoppable(t *testing.T, options Options) (server *Server, stopServer func()) {
	t.Helper()
	server, err := Start(t.Context(), options)
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var maintenance sync.WaitGroup
	maintenance.Go(func() {
		if err := server.Wait(ctx); err != nil {
			t.Errorf("the store failed: %v", err)
		}
	})
	return server, func() {
		cancel()
		maintenance.Wait()
		stop(t, server)
	}
}

func tryPut(t *testing.T, server *Server, key, value string) (result error) {
	t.Helper()
	request(t, server, func(ctx context.Context, client *clientv3.Client) error {
		_, result = client.Put(ctx, key, value)
		return nil
	})
	return result
}

func expectNoSpace(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("the write got %v, want %v", err, rpctypes.ErrNoSpace)
	}
}

func awaitWrite(t *testing.T, server *Server) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = tryPut(t, server, "again", "value")
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("the store still rejects writes: %v", last)
	}
}
