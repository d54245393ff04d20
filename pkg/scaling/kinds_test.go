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
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestKindsThatAreNotServedEvictNoOther(t *testing.T) {
	server := newFakeServer(t)
	server.serve("apps/v1", "Deployment", "deployments")
	client := server.client()
	resolve := func(apiVersion, kind string) error {
		_, err := client.Resolve(t.Context(), Target{APIVersion: apiVersion, Kind: kind, Namespace: "shop", Name: "cart"})
		return err
	}
	if err := resolve("apps/v1", "Deployment"); err != nil {
		t.Fatal(err)
	}
	for i := range maxCachedVersions + 1 {
		var kindError *KindError
		if err := resolve(fmt.Sprintf("g%d.example.com/v1", i), "Thing"); !errors.As(err, &kindError) {
			t.Fatalf("a kind that is not served returns %v", err)
		}
	}
	if err := resolve("apps/v1", "Deployment"); err != nil {
		t.Fatal(err)
	}
	if discoveries := server.requested("/apis/apps/v1"); discoveries != 1 {
		t.Errorf("apps/v1 was discovered %d times, want once", discoveries)
	}
	if cached := client.kinds.missing.Len(); cached > maxCachedVersions {
		t.Errorf("%d group versions that are not served are cached, want %d at most", cached, maxCachedVersions)
	}
}

func TestGroupVersionThatIsServedNowAndThenIsCachedOnce(t *testing.T) {
	server := newFakeServer(t)
	client := server.client()
	widget := Target{APIVersion: "example.com/v1", Kind: "Widget", Namespace: "shop", Name: "cart"}
	var kindError *KindError
	if _, err := client.Resolve(t.Context(), widget); !errors.As(err, &kindError) {
		t.Fatalf("a kind that is not served returns %v", err)
	}
	server.serve("example.com/v1", "Widget", "widgets")
	server.clock.Step(refreshInterval)
	if _, err := client.Resolve(t.Context(), widget); err != nil {
		t.Fatal(err)
	}
	if served, missing := client.kinds.served.Len(), client.kinds.missing.Len(); served != 1 || missing != 0 {
		t.Errorf("%d served and %d missing group versions are cached, want it once, as served", served, missing)
	}
}

// What an object of the cluster runs belongs to no namespace, and to none of its users.
func TestOnlyNamespacedKindsWithAScaleAreTargets(t *testing.T) {
	server := newFakeServer(t)
	server.serve("example.com/v1", "Ox", "oxen")
	server.resources["example.com/v1"] = append(server.resources["example.com/v1"],
		metav1.APIResource{Name: "fleets", Kind: "Fleet"},
		metav1.APIResource{Name: "fleets/scale", Kind: "Scale"},
		metav1.APIResource{Name: "notes", Kind: "Note", Namespaced: true},
		metav1.APIResource{Name: "notes/status", Kind: "Note", Namespaced: true})
	client := server.client()
	for kind, want := range map[string]struct {
		resource string
		problem  KindProblem
	}{
		"Ox":     {resource: "oxen"},
		"oxen":   {resource: "oxen"},
		"Oxs":    {problem: KindNotServed},
		"Fleet":  {problem: KindNotScalable},
		"fleets": {problem: KindNotScalable},
		"Note":   {problem: KindNotScalable},
		"notes":  {problem: KindNotScalable},
		"Scale":  {problem: KindNotServed},
	} {
		resource, err := client.Resolve(t.Context(), Target{APIVersion: "example.com/v1", Kind: kind, Namespace: "shop", Name: "cart"})
		var kindError *KindError
		if want.resource == "" && (!errors.As(err, &kindError) || kindError.Problem != want.problem) {
			t.Errorf("%s: got %v and %v, want the problem %v", kind, resource, err, want.problem)
		}
		if want.resource != "" && (err != nil || resource.Resource != want.resource) {
			t.Errorf("%s: got %v and %v, want %s", kind, resource, err, want.resource)
		}
	}
}
