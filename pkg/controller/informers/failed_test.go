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

package informers

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestForbiddenWatchIsReportedAtOnceAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		server.fail(apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("no role allows it")))
		failed := make(chan struct{}, 100)
		source := server.source()
		source.Failed = func() { failed <- struct{}{} }
		manager, _ := startManager(t)
		began := time.Now()
		handle, err := manager.Acquire(source)
		if err != nil {
			t.Fatal(err)
		}
		defer handle.Release()
		<-failed
		if took := time.Since(began); took >= restartAfter {
			t.Errorf("reported after %s, when the watch is restarted", took)
		}
		if !apierrors.IsForbidden(handle.Problem()) {
			t.Errorf("the problem is %v", handle.Problem())
		}
		<-time.After(10 * time.Minute)
		if more := len(failed); more > 0 {
			t.Errorf("reported %d times more while it fails for the same reason", more)
		}
		server.fail(apierrors.NewNotFound(configMaps.GroupResource(), ""))
		<-failed
		if !apierrors.IsNotFound(handle.Problem()) {
			t.Errorf("the problem is %v", handle.Problem())
		}
	})
}
