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

package scaling

import (
	"slices"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestScaledUpSince(t *testing.T) {
	server := newCart(t, 0)
	client := server.client()
	started := server.clock.Now()
	if client.ScaledUpSince(t.Context(), cart, started) {
		t.Error("scaled up before anything was done")
	}
	if _, err := client.Wake(t.Context(), cart, Autoscaler{}, 1, true); err != nil {
		t.Fatal(err)
	}
	if client.ScaledUpSince(t.Context(), cart, started) {
		t.Error("a dry run counts")
	}
	server.clock.Step(time.Minute)
	woken := server.clock.Now()
	if _, err := client.Wake(t.Context(), cart, Autoscaler{}, 1, false); err != nil {
		t.Fatal(err)
	}
	server.clock.Step(time.Minute)
	// Neither a wake of an awake target nor a scaling down counts.
	if _, err := client.Wake(t.Context(), cart, Autoscaler{}, 1, false); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Scale(t.Context(), cart, 0, false); err != nil {
		t.Fatal(err)
	}
	legacy := cart
	legacy.Kind = "deployments"
	for _, target := range []Target{cart, legacy} {
		if !client.ScaledUpSince(t.Context(), target, woken) {
			t.Errorf("%s: the wake does not count", target)
		}
		if client.ScaledUpSince(t.Context(), target, woken.Add(time.Second)) {
			t.Errorf("%s: scaled up later than it was", target)
		}
	}
}

func TestWakeFromZeroCountsAsScaledUp(t *testing.T) {
	server := newCart(t, 0)
	client := server.client()
	woken := server.clock.Now()
	if _, err := client.WakeFromZero(t.Context(), cart, Autoscaler{}, 1); err != nil {
		t.Fatal(err)
	}
	if !client.ScaledUpSince(t.Context(), cart, woken) {
		t.Error("the wake does not count as scaled up")
	}
	if want := []string{v1alpha1.FieldManager}; !slices.Equal(server.managers, want) {
		t.Errorf("the field managers of the writes are %q, want %q", server.managers, want)
	}
}
