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

// Package target watches the targets of ElastiServices and their autoscalers, and
// returns what the controller acts on: the scale, the readiness probes, what a pod
// requests and which client scaled the target last.
//
// It scales nothing, and does not know when a target sleeps. Begin with Watches.
package target
