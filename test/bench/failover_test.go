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
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheReplicaThatIsKilledLeadsOrDoesNot(t *testing.T) {
	named := func(name string) corev1.Pod { return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	both := []corev1.Pod{named("server-a"), named("server-b")}
	for name, test := range map[string]struct {
		replicas []corev1.Pod
		holder   string
		leads    bool
		want     string
	}{
		"the leader":              {both, "server-b_123", true, "server-b"},
		"the other":               {both, "server-b_123", false, "server-a"},
		"no other":                {both[:1], "server-a_123", true, ""},
		"no leader":               {both, "", false, ""},
		"a leader that has ended": {both, "server-c_123", false, ""},
	} {
		got, err := replicaToKill(test.replicas, test.holder, test.leads)
		if (err == nil) != (test.want != "") || got != nil && got.Name != test.want {
			t.Errorf("%s: got %v, want %q (error: %v)", name, got, test.want, err)
		}
	}
}

func TestCallsAtIntervalsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		err := atIntervals(t.Context(), 3, 100*time.Millisecond, time.Second, func(int) {
			mu.Lock()
			at = append(at, time.Since(began))
			mu.Unlock()
			<-time.After(time.Minute)
		})
		if err != nil {
			t.Error(err)
		}
		if len(at) != 3 || at[0] != 0 || at[1] != 100*time.Millisecond || at[2] != 200*time.Millisecond {
			t.Errorf("the calls were at %v", at)
		}
		if took := time.Since(began); took != time.Minute+200*time.Millisecond {
			t.Errorf("all have ended after %s", took)
		}
	})
}

func TestFailedWakesAreAnError(t *testing.T) {
	var results wakeResults
	results.killed(nil)
	results.ended(time.Second, nil)
	if err := results.err(); err != nil {
		t.Fatal(err)
	}
	results.ended(0, errors.New("not held"))
	if err := results.err(); err == nil || !strings.Contains(err.Error(), "1 of 2 wakes failed") || !strings.Contains(err.Error(), "not held") {
		t.Errorf("the error is %v", err)
	}
	if len(results.took) != 1 || results.took[0] != time.Second {
		t.Errorf("the wakes took %v", results.took)
	}
}

func TestAKillThatFailsIsAnError(t *testing.T) {
	var results wakeResults
	results.killed(errors.New("no process"))
	if err := results.err(); err == nil || !strings.Contains(err.Error(), "no process") {
		t.Errorf("the error is %v", err)
	}
}
