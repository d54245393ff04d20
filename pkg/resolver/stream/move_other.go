//go:build !linux

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

import "github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"

// move copies src to dst until src ends, and returns the number of bytes and the error:
// nil when src has ended, a *socket.ReadError when reading failed, and another error when
// writing failed.
func move(dst, src *socket.TCP) (int64, error) { return plainCopy(dst, src) }
