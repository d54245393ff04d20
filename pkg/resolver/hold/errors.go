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
	// ErrTimeout is returned when no pod could be used in time.
	ErrTimeout = errors.New("no pod could answer in time")
	// ErrClientGone is returned when the client went away while it was held.
	ErrClientGone = errors.New("the client went away")
	// ErrSpoke is returned when a client that had said nothing has said something.
	ErrSpoke = errors.New("the client has said something")
	// ErrClosed is returned when the service is gone.
	ErrClosed = errors.New("the service is not managed any more")
)
