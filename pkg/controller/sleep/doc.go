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

// Package sleep decides when targets sleep and when they are kept awake.
//
// The path of one decision: the Scheduler syncs a target when its time has come.
// For each ElastiService of the target, evaluators report whether its triggers are
// idle, and Decide makes a decision of all that is observed. Combine makes one
// decision about the target of these, and the Sleeper or the Waker carries it out
// through the API.
//
// It does not know how a target is scaled to zero without losing requests:
// pkg/controller/elastiservice does, which checks once more, by ConfirmIdle, right
// before it scales.
//
// Its packages:
//
//   - evaluators: one file for each type of trigger, behind one interface
//   - queries: limits and deduplicates what evaluators send to servers
//   - credentials: reads the Secrets and ConfigMaps that triggers refer to
//   - egress: decides which servers the queries may reach
//   - promql: restricts queries to the series of one namespace
//   - reports: reads what resolvers report about traffic
//
// Begin with Decide.
package sleep
