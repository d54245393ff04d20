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

package v1alpha1

import "time"

// CallerServer is the name of elasti-apiserver itself where a status names the client of
// a request. No other client has it.
const CallerServer = "elasti-apiserver"

// CallerUnknown stands for a client that scaled a target by its scale subresource, where
// that is named to users: Kubernetes does not record which client that was.
const CallerUnknown = "somebody else"

// LatestWake returns the later one of two wakes, of which either may be nil, and of the
// same second the known one when that canceled sleep. A wake in the future was recorded by
// a clock that has been corrected since.
func LatestWake(known, wake *WakeRecord, now time.Time) *WakeRecord {
	if wake == nil || known != nil && known.Time.After(wake.Time.Time) && !known.Time.After(now) {
		return known
	}
	if known != nil && known.CancelledSleep && known.Time.Equal(&wake.Time) {
		return known
	}
	return wake
}
