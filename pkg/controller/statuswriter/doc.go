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

// Package statuswriter writes the statuses that the controller computes. A sync
// does not wait for the store: it continues with the pending status. The writer
// defines which fields and conditions of a status the controller owns.
//
// It does not know how a status is computed. Begin with Writer.
package statuswriter
