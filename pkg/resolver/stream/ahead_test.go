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

package stream

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// A connection that breaks while ahead still uses the other one ends both, also when ahead
// clears the deadline that says so.
func TestPodThatBreaksBeforeTheClientIsForwardedEndsBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, a := sockettest.Pipe()
		pod, b := sockettest.Pipe()
		var joined Joined
		ended := false
		go func() {
			joined = Join(nil, a, b, func() error {
				pod.Reset()
				if err := a.WaitReadable(); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the wait for the client ended with %v", err)
				}
				return a.SetReadDeadline(time.Time{})
			})
			ended = true
		}()
		synctest.Wait()
		if !ended || joined.BBroke == nil {
			t.Errorf("it has ended: %t, %+v", ended, joined)
		}
		// It ends in any case.
		client.Reset()
	})
}
