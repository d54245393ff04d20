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

package durability

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	elasticlientset "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment/environmenttest"
)

const (
	// waitTimeout bounds each wait. It is longer than the Lease of a leader that was killed
	// lasts, and than the aggregator takes to try a server again that was away.
	waitTimeout  = 2 * time.Minute
	pollInterval = 25 * time.Millisecond
	// requestTimeout bounds one request, so that one without a response ends.
	requestTimeout = 15 * time.Second
)

// newNamespace returns the name of a new namespace, which is deleted after the test.
func newNamespace(t *testing.T) string {
	t.Helper()
	return environmenttest.NewNamespace(t, shared, "durability-")
}

// throughTheAggregator is the client configuration of the cluster's administrator.
func throughTheAggregator() *rest.Config {
	config := rest.CopyConfig(shared.Admin)
	config.Timeout = requestTimeout
	return config
}

// directTo is the same at one server, past the aggregator.
func directTo(server *environment.Server) *rest.Config {
	config := throughTheAggregator()
	config.Host = fmt.Sprintf("https://%s:%d", server.Address, server.Port)
	config.CAData, config.Insecure = nil, true
	return config
}

func clientset(t *testing.T, config *rest.Config) elasticlientset.Interface {
	t.Helper()
	client, err := elasticlientset.NewForConfig(config)
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	return client
}

func elastiServices(t *testing.T, config *rest.Config, namespace string) elastiv1alpha1client.ElastiServiceInterface {
	t.Helper()
	return clientset(t, config).ElastiV1alpha1().ElastiServices(namespace)
}

// eventually waits until check returns nothing to complain about.
func eventually(t *testing.T, what string, check func(ctx context.Context) (complaint string)) {
	t.Helper()
	eventuallyWithin(t, waitTimeout, what, check)
}

func eventuallyWithin(t *testing.T, timeout time.Duration, what string, check func(ctx context.Context) (complaint string)) {
	t.Helper()
	environmenttest.Eventually(t, timeout, what, check)
}

// shortDirectory returns a new directory whose path leaves room for the names of sockets.
func shortDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "elasti-durability-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	return directory
}
