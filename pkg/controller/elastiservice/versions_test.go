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

package elastiservice

import (
	"encoding/json"
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

// versionedResources are the resources of the host that have UIDs and resource
// versions.
var versionedResources = []string{"services", "endpointslices"}

// keepVersions has the fake host give objects UIDs and resource versions, and compare
// them, as an API server does.
func (c *cluster) keepVersions() {
	react := clienttesting.ObjectReaction(c.host.Tracker())
	for _, resource := range versionedResources {
		informerstest.React(&c.host.Fake, "create", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			create := action.(clienttesting.CreateActionImpl)
			create.Object = c.versioned(create.Object)
			return react(create)
		})
		informerstest.React(&c.host.Fake, "update", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			update := action.(clienttesting.UpdateActionImpl)
			accessor, err := meta.Accessor(update.Object)
			if err != nil {
				return true, nil, err
			}
			if err := check(c.host.Tracker(), action, accessor.GetName(), accessor.GetUID(), accessor.GetResourceVersion()); err != nil {
				return true, nil, err
			}
			update.Object = c.versioned(update.Object)
			return react(update)
		})
		informerstest.React(&c.host.Fake, "delete", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			deletion := action.(clienttesting.DeleteActionImpl)
			var uid types.UID
			version := ""
			if conditions := deletion.DeleteOptions.Preconditions; conditions != nil {
				if conditions.UID != nil {
					uid = *conditions.UID
				}
				if conditions.ResourceVersion != nil {
					version = *conditions.ResourceVersion
				}
			}
			if err := check(c.host.Tracker(), action, deletion.Name, uid, version); err != nil {
				return true, nil, err
			}
			return false, nil, nil
		})
	}
}

// patchElastiService carries out a patch of an ElastiService as an API server does: only of the
// version that it names, and what is stored has another one.
func (c *cluster) patchElastiService(action clienttesting.Action) (bool, runtime.Object, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	tracker, patch := c.elasti.Tracker(), action.(clienttesting.PatchActionImpl)
	var named struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(patch.Patch, &named); err != nil {
		return true, nil, err
	}
	if err := check(tracker, action, patch.Name, named.Metadata.UID, named.Metadata.ResourceVersion); err != nil {
		return true, nil, err
	}
	_, patched, err := clienttesting.ObjectReaction(tracker)(action)
	if err != nil {
		return true, nil, err
	}
	stored := c.versioned(patched)
	return true, stored, tracker.Update(action.GetResource(), stored, action.GetNamespace())
}

// check compares what a request says of an object, where it says anything, with what
// there is.
func check(tracker clienttesting.ObjectTracker, action clienttesting.Action, name string, uid types.UID, version string) error {
	found, err := tracker.Get(action.GetResource(), action.GetNamespace(), name)
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(found)
	if err != nil {
		return err
	}
	if uid != "" && uid != accessor.GetUID() || version != "" && version != accessor.GetResourceVersion() {
		return apierrors.NewConflict(action.GetResource().GroupResource(), name, errors.New("the object has been modified"))
	}
	return nil
}

// versioned returns an object as it is stored: with a UID, and the next resource version.
func (c *cluster) versioned(object runtime.Object) runtime.Object {
	stored := object.DeepCopyObject()
	accessor, err := meta.Accessor(stored)
	if err != nil {
		c.t.Error(err)
		return stored
	}
	version := strconv.FormatInt(c.lastVersion.Add(1), 10)
	accessor.SetResourceVersion(version)
	if accessor.GetUID() == "" {
		accessor.SetUID(types.UID("uid-" + version))
	}
	return stored
}
