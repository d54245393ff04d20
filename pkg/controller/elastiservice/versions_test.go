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
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// versionedResources are the resources of the host that have UIDs and resource
// versions.
var versionedResources = []string{"services", "endpointslices"}

// keepVersions has the fake host give objects UIDs and resource versions, and compare
// them, as an API server does.
func (c *cluster) keepVersions() {
	react := clienttesting.ObjectReaction(c.host.Tracker())
	for _, resource := range versionedResources {
		c.host.PrependReactor("create", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			create := action.(clienttesting.CreateActionImpl)
			create.Object = c.versioned(create.Object)
			return react(create)
		})
		c.host.PrependReactor("update", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			update := action.(clienttesting.UpdateActionImpl)
			accessor, err := meta.Accessor(update.Object)
			if err != nil {
				return true, nil, err
			}
			if err := c.check(action, accessor.GetName(), accessor.GetUID(), accessor.GetResourceVersion()); err != nil {
				return true, nil, err
			}
			update.Object = c.versioned(update.Object)
			return react(update)
		})
		c.host.PrependReactor("delete", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
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
			if err := c.check(action, deletion.Name, uid, version); err != nil {
				return true, nil, err
			}
			return false, nil, nil
		})
	}
}

// check compares what a request says of an object, where it says anything, with what
// there is.
func (c *cluster) check(action clienttesting.Action, name string, uid types.UID, version string) error {
	found, err := c.host.Tracker().Get(action.GetResource(), action.GetNamespace(), name)
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
