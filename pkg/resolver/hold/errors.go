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

import "errors"

var (
	// ErrTooManyPending is returned when a service already holds as much as
	// its proxy.maxPending allows.
	ErrTooManyPending = errors.New("the service already holds as many requests as its proxy.maxPending allows")
	// ErrTimeout is returned when no pod could serve before the deadline.
	ErrTimeout = errors.New("timed out waiting for a ready pod")
	// ErrClientGone is returned when the client closed its connection while held.
	ErrClientGone = errors.New("the client closed its connection")
	// ErrSpoke is returned when a silent client has sent something.
	ErrSpoke = errors.New("the client has sent something")
	// ErrAsleep is returned to a passive waiter while no pod can serve.
	ErrAsleep = errors.New("the target sleeps, and by spec.proxy.passive this does not wake it")
	// ErrClosed is returned when the ElastiService was deleted.
	ErrClosed = errors.New("the service is no longer managed")
)
