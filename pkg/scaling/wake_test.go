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
	"errors"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const cartScale = "/apis/apps/v1/namespaces/shop/deployments/cart/scale"

var cart = Target{Namespace: "shop", APIVersion: "apps/v1", Kind: "Deployment", Name: "cart"}

func newCart(t *testing.T, replicas int32) *fakeServer {
	t.Helper()
	server := newFakeServer(t)
	server.serve("apps/v1", "Deployment", "deployments")
	server.putScale(cartScale, "shop", "cart", replicas)
	return server
}

func TestWakeScalesOnlyUp(t *testing.T) {
	for _, test := range []struct {
		name              string
		replicas, minimum int32
		want              int32
		scaled            bool
	}{
		{"from zero to the minimum", 0, 3, 3, true},
		{"a minimum of zero wakes to one", 0, 0, 1, true},
		{"already at the minimum", 3, 3, 3, false},
		{"raised by an autoscaler meanwhile", 8, 3, 8, false},
		{"below the minimum", 1, 3, 3, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newCart(t, test.replicas)
			result, err := server.client().Wake(t.Context(), cart, Autoscaler{}, test.minimum, false)
			if err != nil {
				t.Fatal(err)
			}
			if result.Replicas != test.want || result.Scaled != test.scaled {
				t.Errorf("got %+v, want %d replicas, scaled %t", result, test.want, test.scaled)
			}
			if got := len(server.written()); (got == 1) != test.scaled {
				t.Errorf("%d writes, want scaled %t", got, test.scaled)
			}
		})
	}
}

func TestWakeUnderstandsLegacyKinds(t *testing.T) {
	server := newCart(t, 0)
	legacy := cart
	legacy.Kind = "deployments"
	if result, err := server.client().Wake(t.Context(), legacy, Autoscaler{}, 1, false); err != nil || !result.Scaled {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestWakeDryRunWritesNothing(t *testing.T) {
	server := newCart(t, 0)
	result, err := server.client().Wake(t.Context(), cart, Autoscaler{}, 2, true)
	if err != nil || !result.Scaled || result.Replicas != 2 {
		t.Errorf("got %+v, %v", result, err)
	}
	if writes := server.written(); len(writes) != 0 {
		t.Errorf("wrote %v", writes)
	}
}

func TestWakeNeverLowersWhatAnotherWriterRaised(t *testing.T) {
	server := newCart(t, 0)
	var once sync.Once
	server.beforeWrite = func(string) {
		once.Do(func() { server.putScale(cartScale, "shop", "cart", 5) })
	}
	result, err := server.client().Wake(t.Context(), cart, Autoscaler{}, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	if result.Replicas != 5 || result.Scaled {
		t.Errorf("got %+v, want the 5 replicas of the other writer", result)
	}
}

func TestConcurrentWakesScaleOnce(t *testing.T) {
	server := newCart(t, 0)
	client := server.client()
	var group sync.WaitGroup
	var mu sync.Mutex
	scaled := 0
	for range 20 {
		group.Go(func() {
			result, err := client.Wake(t.Context(), cart, Autoscaler{}, 1, false)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || result.Replicas != 1 {
				t.Errorf("got %+v, %v", result, err)
			}
			if result.Scaled {
				scaled++
			}
		})
	}
	group.Wait()
	if scaled != 1 || len(server.written()) != 1 {
		t.Errorf("%d wakes say that they scaled, %d writes, want one of each", scaled, len(server.written()))
	}
	if discoveries := server.requested("/apis/apps/v1"); discoveries != 1 {
		t.Errorf("%d discoveries, want 1", discoveries)
	}
}

func TestWakeErrorsKeepTheirStatus(t *testing.T) {
	server := newCart(t, 0)
	missing := cart
	missing.Name = "basket"
	_, err := server.client().Wake(t.Context(), missing, Autoscaler{}, 1, false)
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "shop/basket") {
		t.Errorf("got %v, want a not-found error that names the target", err)
	}
}

func TestKindErrors(t *testing.T) {
	server := newCart(t, 0)
	client := server.client()
	for _, test := range []struct {
		apiVersion, kind string
		want             KindProblem
	}{
		{"apps/v1", "Deploymint", KindNotServed},
		{"argoproj.io/v1alpha1", "Rollout", KindNotServed},
		{"../v1", "Deployment", KindInvalid},
		{"a/b/c", "Deployment", KindInvalid},
		{"apps/v1", "", KindInvalid},
	} {
		_, err := client.Resolve(t.Context(), Target{Namespace: "shop", APIVersion: test.apiVersion, Kind: test.kind, Name: "cart"})
		var kindError *KindError
		if !errors.As(err, &kindError) || kindError.Problem != test.want {
			t.Errorf("%s %s: got %v, want %s", test.apiVersion, test.kind, err, test.want)
		}
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s %s: %v is not a 404", test.apiVersion, test.kind, err)
		}
	}
}

func TestKindInstalledLaterIsFound(t *testing.T) {
	server := newFakeServer(t)
	client := server.client()
	rollout := Target{Namespace: "shop", APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: "cart"}
	for range 10 {
		if _, err := client.Resolve(t.Context(), rollout); err == nil {
			t.Fatal("found a kind that is not served")
		}
	}
	if discoveries := server.requested("/apis/argoproj.io/v1alpha1"); discoveries != 1 {
		t.Errorf("%d discoveries of a missing kind within an instant, want 1", discoveries)
	}
	server.serve("argoproj.io/v1alpha1", "Rollout", "rollouts")
	server.clock.Step(refreshInterval)
	resource, err := client.Resolve(t.Context(), rollout)
	if err != nil || resource.Resource != "rollouts" {
		t.Errorf("got %v, %v", resource, err)
	}
}
