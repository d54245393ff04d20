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

package validation_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

// metadataParts are parts of the metadata of an object, with about a kilobyte for each of
// count.
func metadataParts() map[string]func(meta *metav1.ObjectMeta, count int) {
	prefix := strings.Repeat(strings.Repeat("p", 60)+".", 3) + "example.com/"
	return map[string]func(meta *metav1.ObjectMeta, count int){
		"labels": func(meta *metav1.ObjectMeta, count int) {
			meta.Labels = map[string]string{}
			for i := range 4 * count {
				meta.Labels[fmt.Sprintf("%s%04d", prefix, i)] = strings.Repeat("v", 60)
			}
		},
		"ownerReferences": func(meta *metav1.ObjectMeta, count int) {
			meta.OwnerReferences = nil
			for i := range 4 * count {
				meta.OwnerReferences = append(meta.OwnerReferences, metav1.OwnerReference{
					APIVersion: "apps/v1", Kind: "Deployment", Name: strings.Repeat("n", 200), UID: types.UID(fmt.Sprintf("%036d", i)),
				})
			}
		},
		"finalizers": func(meta *metav1.ObjectMeta, count int) {
			meta.Finalizers = nil
			for i := range 4 * count {
				meta.Finalizers = append(meta.Finalizers, fmt.Sprintf("%s%060d", prefix, i))
			}
		},
		"managedFields": func(meta *metav1.ObjectMeta, count int) {
			meta.ManagedFields = nil
			for i := range count {
				meta.ManagedFields = append(meta.ManagedFields, metav1.ManagedFieldsEntry{
					Manager: fmt.Sprintf("manager-%d", i), Operation: metav1.ManagedFieldsOperationApply,
					APIVersion: "elasti.truefoundry.com/v1alpha1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:` + strings.Repeat("x", 1000) + `":{}}}`),
				})
			}
		},
	}
}

// The server keeps the metadata of all tenants in memory and in one store.
func TestMetadataIsBounded(t *testing.T) {
	for part, fill := range metadataParts() {
		ordinary, oversized := valid(), valid()
		fill(&ordinary.ObjectMeta, 8)
		if errs := validation.ValidateElastiService(ordinary); len(errs) > 0 {
			t.Errorf("%s of 8 KiB: %v, want them accepted", part, errs)
		}
		fill(&oversized.ObjectMeta, 80)
		for operation, errs := range map[string]field.ErrorList{
			"creation": validation.ValidateElastiService(oversized),
			"update":   validation.ValidateElastiServiceUpdate(oversized, ordinary),
		} {
			if len(errs) != 1 || errs[0].Field != "metadata."+part || len(errs[0].Error()) > 512 {
				t.Errorf("%s of 80 KiB, %s: got %v, want one short error", part, operation, errs)
			}
		}
	}
}

// An earlier version accepted larger metadata.
func TestMetadataThatDoesNotGrowIsNotChecked(t *testing.T) {
	for part, fill := range metadataParts() {
		previous := valid()
		fill(&previous.ObjectMeta, 80)
		previous.Finalizers = append(previous.Finalizers, elasti.Finalizer)
		updated := previous.DeepCopy()
		updated.Spec.CooldownPeriod = ptr.To[int32](60)
		updated.Finalizers = updated.Finalizers[:len(updated.Finalizers)-1]
		if errs := validation.ValidateElastiServiceUpdate(updated, previous); len(errs) > 0 {
			t.Errorf("%s of 80 KiB: the finalizer is removed: %v", part, errs)
		}
		fill(&updated.ObjectMeta, 79)
		if errs := validation.ValidateElastiServiceUpdate(updated, previous); len(errs) > 0 {
			t.Errorf("%s of 80 KiB become fewer: %v", part, errs)
		}
	}
}

// kubectl apply writes the whole object into an annotation.
func TestAnnotationsMayHoldTheSpec(t *testing.T) {
	elastiService := valid()
	elastiService.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 200<<10)}
	if errs := validation.ValidateElastiService(elastiService); len(errs) > 0 {
		t.Errorf("got %v, want it accepted", errs)
	}
}
