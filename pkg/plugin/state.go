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

package plugin

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// State is what the target of an ElastiService does.
type State string

const (
	// Asleep: it has no replicas, and traffic wakes it.
	Asleep State = "asleep"
	// Waking: it is to have replicas, and no pod is ready.
	Waking State = "waking"
	// Awake: a pod is ready.
	Awake State = "awake"
	// Unknown: the server has not observed it yet, or cannot.
	Unknown State = "unknown"
)

// stateOf returns what the target of an ElastiService does and since when. The time is
// zero when that is not known.
func stateOf(elastiService *v1alpha1.ElastiService) (State, time.Time) {
	status := &elastiService.Status
	sleeping := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionSleeping)
	switch {
	case sleeping == nil || sleeping.Status == metav1.ConditionUnknown:
		return Unknown, time.Time{}
	case sleeping.Status == metav1.ConditionTrue:
		return Asleep, sleeping.LastTransitionTime.Time
	case status.ReadyReplicas == 0 && status.Replicas > 0:
		return Waking, sleeping.LastTransitionTime.Time
	default:
		return Awake, sleeping.LastTransitionTime.Time
	}
}

// why returns what is most worth knowing of an ElastiService: what is wrong, or else why
// its target sleeps or is awake.
func why(elastiService *v1alpha1.ElastiService) (reason, message string) {
	reason, message = reasonOf(elastiService)
	return printable(reason), printable(message)
}

func reasonOf(elastiService *v1alpha1.ElastiService) (reason, message string) {
	conditions := elastiService.Status.Conditions
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil && ready.Status != metav1.ConditionTrue {
		return ready.Reason, ready.Message
	}
	if available := meta.FindStatusCondition(conditions, v1alpha1.ConditionTargetAvailable); available != nil && available.Status == metav1.ConditionFalse {
		if state, _ := stateOf(elastiService); state == Waking {
			return available.Reason, available.Message
		}
	}
	if sleeping := meta.FindStatusCondition(conditions, v1alpha1.ConditionSleeping); sleeping != nil {
		return sleeping.Reason, sleeping.Message
	}
	return "NotObserved", "elasti-apiserver has not written a status yet"
}

// printable returns a text without the characters by which it would rewrite a terminal or
// look like another line. Messages hold what tenants wrote, such as the reason of a wake.
func printable(text string) string {
	return strings.Map(func(character rune) rune {
		if !unicode.IsPrint(character) {
			return unicode.ReplacementChar
		}
		return character
	}, text)
}

// progress says in words how far the target of an ElastiService is.
func progress(elastiService *v1alpha1.ElastiService) string {
	reason, message := why(elastiService)
	pods := fmt.Sprintf("%d of %d pods are ready", elastiService.Status.ReadyReplicas, elastiService.Status.Replicas)
	if message == "" {
		return pods + ": " + reason
	}
	return pods + ": " + reason + ": " + message
}
