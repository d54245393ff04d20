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

package http2

import (
	"time"

	"golang.org/x/net/http2"
)

const (
	// floodBurst and floodRate bound the frames that a client makes the resolver
	// work for while it holds its streams: at once, and for each second. Once there
	// is a pod such frames are the pod's to handle.
	floodBurst, floodRate = 2000, 200
	// maxContinuations bounds the frames of a header block.
	maxContinuations = 128
)

// floodLimit is a token bucket. Its zero value is full.
type floodLimit struct {
	used float64
	at   time.Time
}

// take takes a token, and fails when there is none.
func (l *floodLimit) take(now time.Time) error {
	if !l.at.IsZero() {
		l.used = max(0, l.used-floodRate*now.Sub(l.at).Seconds())
	}
	l.at = now
	if l.used >= floodBurst {
		return connError{http2.ErrCodeEnhanceYourCalm, "too many frames that carry nothing"}
	}
	l.used++
	return nil
}
