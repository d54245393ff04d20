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
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// In an upgrade the new process is there before the old one has finished its
// last requests.
func TestStartWaitsForThePredecessor(t *testing.T) {
	dataDir := t.TempDir()
	predecessor := start(t, dataDir)
	put(t, predecessor, "key", "value")

	waiting := make(chan struct{})
	ctx := klog.NewContext(t.Context(), noticing("Waiting for another process", waiting))
	type result struct {
		server *Server
		err    error
	}
	started := make(chan result, 1)
	go func() {
		server, err := Start(ctx, Options{DataDir: dataDir, LockTimeout: time.Minute})
		started <- result{server, err}
	}()
	select {
	case <-waiting:
	case early := <-started:
		t.Fatalf("started beside its predecessor, or failed: %v", early.err)
	}
	put(t, predecessor, "key", "changed")
	stop(t, predecessor)
	successor := <-started
	if successor.err != nil {
		t.Fatal(successor.err)
	}
	defer stop(t, successor.server)
	if value := get(t, successor.server, "key"); value != "changed" {
		t.Errorf("the successor has %q, want what the predecessor wrote last", value)
	}
}

func TestWaitingForThePredecessorEndsWithItsContext(t *testing.T) {
	dataDir := t.TempDir()
	defer stop(t, start(t, dataDir))
	waiting := make(chan struct{})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), noticing("Waiting for another process", waiting)))
	go func() {
		<-waiting
		cancel()
	}()
	_, err := Start(ctx, Options{DataDir: dataDir, LockTimeout: time.Hour})
	expectError(t, err, dataDir, "in use by another process")
}

// noticing returns a logger that closes the channel at the first message that
// begins with the text.
func noticing(text string, noticed chan struct{}) klog.Logger {
	return klog.New(&noticingSink{text: text, noticed: noticed})
}

type noticingSink struct {
	text    string
	noticed chan struct{}
	once    sync.Once
}

func (*noticingSink) Init(klog.RuntimeInfo) {}

func (*noticingSink) Enabled(int) bool { return true }

func (s *noticingSink) Info(_ int, message string, _ ...any) {
	if strings.HasPrefix(message, s.text) {
		s.once.Do(func() { close(s.noticed) })
	}
}

func (*noticingSink) Error(error, string, ...any) {}

func (s *noticingSink) WithValues(...any) klog.LogSink { return s }

func (s *noticingSink) WithName(string) klog.LogSink { return s }
