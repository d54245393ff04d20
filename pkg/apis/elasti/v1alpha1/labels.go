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

// Labels of the objects that the controller manages.
const (
	// LabelRole says what an object is for: RolePrivate or RoleResolver.
	LabelRole = GroupName + "/role"
	// RolePrivate is the role of private Services, and of their EndpointSlices.
	RolePrivate = "private"
	// RoleResolver is the role of resolver slices.
	RoleResolver = "resolver"

	// LabelManagedBy is the label of Kubernetes that names what manages an
	// object. On private Services it has the value ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "elasti-apiserver"
	// FieldManager is the name under which this project writes objects.
	FieldManager = "elasti-apiserver"
	// SliceManagedBy is the value of the label
	// endpointslice.kubernetes.io/managed-by on resolver slices. It distinguishes
	// them from the slices of Kubernetes.
	SliceManagedBy = GroupName
)

// Annotations.
const (
	// AnnotationOwner names the ElastiService, in the same namespace, that an
	// object was made for. It is no label because a label cannot hold every
	// name.
	AnnotationOwner = GroupName + "/elastiservice"
	// AnnotationTarget, on a private Service, holds which target and
	// autoscaler are managed, in JSON, so that they are restored when the
	// ElastiService names others.
	AnnotationTarget = GroupName + "/target"
	// AnnotationSignature, on an object that the controller made, proves that it
	// did: every client that may write the object may write its other labels and
	// annotations.
	AnnotationSignature = GroupName + "/signature"
	// AnnotationDryRun with the value "true" on an ElastiService means that
	// decisions for it are recorded as Events and not carried out.
	AnnotationDryRun = GroupName + "/dry-run"
	// AnnotationPausedAnnotations, on a ScaledObject of KEDA, says that it is
	// paused for a sleeping target. Its value holds, as a JSON object, the
	// pause annotations that the user had set before.
	AnnotationPausedAnnotations = GroupName + "/paused-annotations"
	// AnnotationAcceptVolumeDeletion with the value "true" on an ElastiService
	// accepts that its target loses its volumes, with their data, whenever it
	// is put to sleep.
	AnnotationAcceptVolumeDeletion = GroupName + "/accept-volume-deletion"
	// AnnotationPausedScaleIn, on a ScaledObject of KEDA, says that it is kept
	// from scaling in for a target that is awake. Its value holds, as a JSON
	// object, the annotation that the user had set before.
	AnnotationPausedScaleIn = GroupName + "/paused-scale-in"
)
