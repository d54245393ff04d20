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

package resolver

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/sharedport"
)

// The controller queries before it sends traffic for a service to the shared port.
// Its query must not wake anything.
func TestSharedPortReportsWhetherItKnowsAService(t *testing.T) {
	port := freePort(t)
	c := newCluster(t, func(o *Options) {
		o.SharedPort, o.ClusterDomain, o.SharedHostHeader = port, "cluster.local", "X-Forwarded-Host"
	}, elastiService("cart", port))
	wake := func(*v1alpha1.WakeRequest) error {
		t.Error("the query woke the target")
		return nil
	}
	c.wake.Store(&wake)
	knows := func(hostName string) bool {
		t.Helper()
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		known, err := sharedport.Knows(connection, hostName)
		if err != nil {
			t.Fatal(err)
		}
		return known
	}
	if !knows(sharedport.HostName("shop", "cart", 80)) {
		t.Error("the service is not known")
	}
	for _, unknown := range []string{
		sharedport.HostName("shop", "cart", 81), sharedport.HostName("other", "cart", 80), sharedport.HostName("shop", "till", 80), sharedport.Host, "",
	} {
		if knows(unknown) {
			t.Errorf("%q is known", unknown)
		}
	}
}
