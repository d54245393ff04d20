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

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// TestPodThatIsNotAllowedGetsAReset sends requests from a pod through the Service and
// connects to the resolvers directly, from addresses that the ElastiService does not
// allow at first and then does.
func TestPodThatIsNotAllowedGetsAReset(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	observer := s.observe()
	app := s.asleep(cluster.ApplicationOptions{})
	s.allowClients(app, `["192.0.2.0/24","2001:db8::/32"]`)
	for _, resolver := range s.resolversOf(app) {
		s.awaitReset(resolver, portHealth)
	}
	s.checkStaysAsleep(app, observer, func() {
		if printed, err := s.GetFromPod(s.ctx, s.namespace, app.URL("/")); err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("a pod that is not allowed gets %q, %v", printed, err)
		}
	})
	s.allowClients(app, `["0.0.0.0/0","::/0"]`)
	err := wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := s.GetFromPod(ctx, s.namespace, app.URL("/"))
		return err == nil, nil
	})
	s.check(err)
}

// allowClients replaces proxy.allowedClients.
func (s *scene) allowClients(app *cluster.Application, networks string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"proxy":{"allowedClients":%s}}}`, networks)
	_, err := s.Elasti.ElastiV1alpha1().ElastiServices(app.Namespace).Patch(s.ctx, app.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	s.check(err)
}

// awaitReset waits until connections to a port of a host are reset.
func (s *scene) awaitReset(h *host, port int) {
	s.Helper()
	var last error
	err := wait.PollUntilContextTimeout(s.ctx, pollInterval, resetTimeout, true, func(ctx context.Context) (bool, error) {
		conn, err := h.dial(ctx, port)
		if err != nil {
			last = err
			return errors.Is(err, syscall.ECONNRESET), nil
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(resetTimeout)); err != nil {
			return false, err
		}
		_, last = conn.Read(make([]byte, 1))
		return errors.Is(last, syscall.ECONNRESET), nil
	})
	if err != nil {
		s.Fatalf("connections to %s are not reset: %v", h.at(port), last)
	}
}
