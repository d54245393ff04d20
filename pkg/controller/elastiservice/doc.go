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

// Package elastiservice keeps the cluster in the state that each ElastiService specifies: the
// private Service, the proxy ports, the resolver slices that put resolvers in
// the path of a public Service, and the status. It does not know when a trigger is
// idle, which pkg/controller/sleep does: of triggers it considers only whether one is of
// the type traffic, and of what resolvers do only the activity that they have reported
// since sleep was requested. Begin with reconcile.go.
//
// # Phases
//
// A reconciliation of an ElastiService is a list of phases, each with one job, in
// this order:
//
//  1. finalizers: adds the finalizer; of an ElastiService that is being deleted,
//     restores the target and removes what was made, and ends there.
//  2. observe: reads the caches, and records the scale of the target.
//  3. ports of others: takes proxy ports out of the resolver slices that belong to another
//     ElastiService.
//  4. removal: takes the resolvers out of the path of a Service that they cannot
//     stand in for any more, after waking its target. Phases 5 to 12 do nothing then.
//     A target whose Service is deleted stays asleep, and the private Service stays as
//     its record.
//  5. previous targets: restores the targets that are recorded and not named any more.
//     Until that is done, what was made for another ElastiService, which had the Service
//     before, stays as it is.
//  6. ports: assigns a proxy port to each TCP port of the public Service, each
//     claimed in the storage.
//  7. private Service: makes the private Service, which records what is named now, as
//     the resolver slices and the status do.
//  8. port record: writes the proxy ports to the status. It comes before anything
//     points at them, so that a restart cannot give them to another ElastiService.
//  9. mode: decides the next step of a scale-down, then the mode, which is proxy
//     during a scale-down.
//  10. slices: lists the resolvers that accept connections in the resolver slices, after
//     a port check that has each accept, or deletes the slices. If the resolvers were out
//     of the path in between, the scale-down drains again.
//  11. scale-down: takes the step. It comes after the slices: a target goes to zero
//     only with its resolvers in the path, of each of its ElastiServices, and with
//     private Services by which they find its pods. The slices are read from the API
//     server right before.
//  12. leftovers: deletes private Services that are not needed any more. It comes
//     after the slices: resolvers forward to their endpoints until then.
//  13. missing resolvers: wakes a sleeping target when there are no resolvers.
//  14. autoscaler: resumes an autoscaler whose target is awake, and keeps it from
//     scaling to zero for as long as the target is to be awake.
//  15. availability: finds out whether a pod of the target is ready, and what keeps
//     the target from starting.
//  16. status: has the status written that reports what was observed and done.
//
// A phase that fails records the error, and the next ones run all the same, unless
// what they build on is missing.
//
// # Files
//
// The loop:
//
//   - controller.go: wiring, Run and the workers
//   - options.go: what a Controller is made of
//   - queue.go: the queue of ElastiServices, urgent ones first
//   - sources.go: the watches and their indexes
//   - transform.go: what is kept of the watched objects
//   - polls.go: targets that no watch reports
//   - unsynced.go: namespaces that cannot be read yet
//   - deletions.go: which ElastiServices were deleted
//   - changes.go: which ElastiServices a change of an object concerns
//   - reconcile.go: the phases and what they pass on to each other
//   - state.go: what is kept of an ElastiService between two reconciliations
//   - metrics.go, events.go: what is reported
//
// The phases:
//
//   - finalize.go: finalizers and leftovers
//   - removal.go: removal, and ElastiServices that do not exist any more: wake first,
//     then remove
//   - observe.go: observe
//   - owner.go: which ElastiService owns a Service that several name
//   - ownership.go: which Services and EndpointSlices the controller made
//   - previoustarget.go: previous targets
//   - ports.go: ports of others, ports and port record
//   - privateservice.go: private Service
//   - mode.go: mode
//   - slices.go, portchecks.go: slices
//   - scaledown.go, scaletozero.go, sharedtarget.go: scale-down
//   - autoscaler.go: pausing and resuming, autoscaler
//   - outage.go, wakequeue.go: missing resolvers
//   - resolvers.go: the check of the resolvers
//   - availability.go: availability
//   - status.go, conditions.go, compatibility.go: status
//
// Beside the loop:
//
//   - teardown.go: puts the cluster back without any ElastiService
//   - scope.go: leaves namespaces that are not worked on any more
//
// # Modes
//
// The mode follows from what is observed, never from what was intended. A
// ready endpoint in one of the public Service's own EndpointSlices (those that
// are not managed by the controller) means serve, none means proxy. The readiness
// of pods and the private Service's slices can be up to a second ahead of the
// public Service's slices, so they do not count. A target that was just scaled to
// zero gets its resolver slice before its endpoints are deleted, and keeps it
// until they are.
//
// # The policy Always
//
// With spec.proxy.policy Always the resolver slice stays while pods are ready.
// The public Service then has the endpoints of its pods and of the resolvers,
// and whatever balances the Service's traffic chooses between them: resolvers
// receive about r/(r+p) of the new connections, with r resolvers and p ready
// pods, not all of them. Taking the pods out would mean editing the user's
// Service. So a resolver sees a sample of the traffic: enough to determine that a
// Service is in use, not to count its requests. One request in a cooldown that
// goes past the resolvers is not seen by them.
package elastiservice
