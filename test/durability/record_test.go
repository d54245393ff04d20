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

package durability

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// counterKey is the key of the label and of the annotation with the number of the write
// that made a state of an ElastiService. The cooldown is that number, too.
const counterKey = "durability.example.com/counter"

// record is what the only writer of an ElastiService knows of it.
type record struct {
	name, service string
	// uid is empty until a state is known.
	uid types.UID
	// sent is the number of the last write that was sent, and acknowledged that of the
	// last one that is known to be stored, 0 if none is.
	sent, acknowledged int
	// deletionSent is true when a deletion was sent, and deleted when one is known to be
	// stored. A finalizer may keep the object.
	deletionSent, deleted bool
	// removed is true when the object is known not to exist any more.
	removed bool
}

// newObject returns the object of a record, as write number sent makes it.
func (r *record) newObject() *v1alpha1.ElastiService {
	object := &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		Spec: v1alpha1.ElastiServiceSpec{
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: r.service},
			Service:        r.service,
		},
	}
	setCounter(object, r.sent)
	return object
}

func setCounter(object *v1alpha1.ElastiService, counter int) {
	object.Labels = map[string]string{counterKey: strconv.Itoa(counter)}
	object.Annotations = map[string]string{counterKey: strconv.Itoa(counter)}
	object.Spec.CooldownPeriod = ptr.To(int32(counter))
}

// counterOf returns the number of the write that made a state, or an error when not all of
// it is of one write.
func counterOf(object *v1alpha1.ElastiService) (int, error) {
	label, annotation, cooldown := object.Labels[counterKey], object.Annotations[counterKey], ptr.Deref(object.Spec.CooldownPeriod, -1)
	counter, err := strconv.Atoi(label)
	if err != nil || annotation != label || int(cooldown) != counter {
		return 0, fmt.Errorf("its label is of write %q, its annotation of write %q and its cooldown of write %d", label, annotation, cooldown)
	}
	return counter, nil
}

// complaint says what is wrong with the stored object, nil if there is none.
func (r *record) complaint(stored *v1alpha1.ElastiService) string {
	if stored == nil {
		if r.deletionSent || r.acknowledged == 0 {
			return ""
		}
		return fmt.Sprintf("%s does not exist, but its write %d was acknowledged and no deletion was sent", r.name, r.acknowledged)
	}
	counter, err := counterOf(stored)
	terminating := stored.DeletionTimestamp != nil
	switch {
	case r.removed:
		return fmt.Sprintf("%s exists again, with the UID %s, but its deletion was acknowledged and it did not exist any more", r.name, stored.UID)
	case r.deleted && !terminating:
		return fmt.Sprintf("%s is not being deleted, but its deletion was acknowledged", r.name)
	case terminating && !r.deletionSent:
		return fmt.Sprintf("%s is being deleted, but no deletion was sent", r.name)
	case stored.UID == "" || r.uid != "" && stored.UID != r.uid:
		return fmt.Sprintf("%s has the UID %q, want %q", r.name, stored.UID, r.uid)
	case stored.Spec.Service != r.service || stored.Spec.ScaleTargetRef.Name != r.service:
		return fmt.Sprintf("%s has the spec %+v, want the Service and the target %s", r.name, stored.Spec, r.service)
	case err != nil:
		return fmt.Sprintf("%s is not of one write: %v", r.name, err)
	case counter < r.acknowledged || counter > r.sent:
		return fmt.Sprintf("%s is of write %d, but write %d was acknowledged and write %d was the last one", r.name, counter, r.acknowledged, r.sent)
	}
	return ""
}

// learn records a state that is stored.
func (r *record) learn(stored *v1alpha1.ElastiService) {
	if counter, err := counterOf(stored); err == nil {
		r.acknowledged = max(r.acknowledged, counter)
	}
	r.uid = stored.UID
}
