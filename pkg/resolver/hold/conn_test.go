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

package hold

import (
	"testing"
	"time"
)

// faultyClient is a client whose wait panics, after a function was called.
type faultyClient struct{ before func() }

func (faultyClient) SetReadDeadline(time.Time) error { return nil }
func (faultyClient) Unread() int                     { return 0 }
func (faultyClient) WaitReset() error                { return nil }
func (faultyClient) WaitReadable() error             { return nil }

func (f faultyClient) WaitClosed() error {
	f.before()
	panic("a fault")
}

// A panic of a wait gives back what it has: its place in the line, or a lease.
func TestPanicOfAWaitGivesItsPlaceBack(t *testing.T) {
	for name, podReady := range map[string]bool{"in the line": false, "with a lease": true} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(Limits{MaxPending: 1}, 1<<20, nil)
			defer q.Close()
			waiter := &ConnWaiter{Bytes: 5, Conn: faultyClient{func() {
				if podReady {
					q.SetPods(pods("a"))
				}
			}}}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the wait contains the panic")
					}
				}()
				_, _, _ = waiter.Wait(q, false)
			}()
			if q.Held() != 0 || q.InFlight() != 0 || q.NeedsPod() || q.account.Used() != 0 {
				t.Errorf("%d are held, %d in flight, a pod is needed: %t, %d bytes", q.Held(), q.InFlight(), q.NeedsPod(), q.account.Used())
			}
		})
	}
}
