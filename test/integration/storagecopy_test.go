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

package integration

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// copyTimeout bounds one run of the command.
const copyTimeout = time.Minute

// copyStorage runs "elasti-apiserver storage copy" with the permissions of the server.
func copyStorage(t *testing.T, flags ...string) {
	t.Helper()
	process, err := shared.Server.StartAnother(filepath.Join(t.TempDir(), "log"), nil, slices.Concat([]string{"storage", "copy"}, flags)...)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-process.Exited():
	case <-time.After(copyTimeout):
		process.Kill()
		t.Fatalf("copying with %v did not end\n%s", flags, process.Tail())
	}
	if code := process.ExitCode(); code != 0 {
		t.Fatalf("copying with %v ended with %d\n%s", flags, code, process.Tail())
	}
}

// installClusterStorage adds to the host cluster what the storage in it needs.
func installClusterStorage(t *testing.T) {
	t.Helper()
	if err := shared.InstallClusterStorage(t.Context(), newKubectl(t, environment.SystemNamespace)); err != nil {
		t.Fatal(err)
	}
}

// moveToHostCluster moves what the shared server stores to the host cluster until the test
// ends, as the component from-embedded-storage does. It calls meanwhile while there is no
// server, before the copy is made and after it.
func moveToHostCluster(t *testing.T, meanwhile func()) {
	t.Helper()
	admin := newKubectl(t, environment.SystemNamespace)
	stopServer(t)
	meanwhile()
	flags, kubeconfig := shared.Server.Flags, shared.Server.Kubeconfig
	copyStorage(t, "--from=embedded", "--from-data-dir="+shared.Server.DataDir, "--to=cluster", "--to-kubeconfig="+kubeconfig, "--once")
	meanwhile()
	shared.Server.Flags = []string{"--storage=cluster"}
	t.Cleanup(func() {
		if err := shared.Server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		copyStorage(t, "--from=cluster", "--from-kubeconfig="+kubeconfig, "--to=embedded", "--to-data-dir="+shared.Server.DataDir, "--overwrite")
		// A complete copy would be left as it is by the next test.
		if _, err := admin.Run(context.Background(), "", "delete", "storedelastiservices,storedproxyportclaims", "--all"); err != nil {
			t.Error(err)
		}
		shared.Server.Flags = flags
		if err := shared.Server.Start(context.Background()); err != nil {
			t.Errorf("starting the server on its previous storage: %v", err)
		}
	})
	startAgain(t)
}

// An installation with the embedded storage is upgraded to the one in the host cluster:
// sleeping services stay behind their resolvers, and every object is as it was.
func TestServicesStayAsTheyAreWhenTheirStorageMoves(t *testing.T) {
	installClusterStorage(t)
	applications := newScene(t)
	before := map[string]*v1alpha1.ElastiService{applications.asleep: readElastiService(t, applications.asleep), applications.awake: readElastiService(t, applications.awake)}
	slice := resolverSlices(t.Context(), t, applications.asleep)[0]

	moveToHostCluster(t, func() {})

	// The controller has started once it has synced a new object.
	expectWorkingController(t)
	for namespace, want := range before {
		after := readElastiService(t, namespace)
		if after.UID != want.UID || after.Generation != want.Generation || !after.CreationTimestamp.Equal(&want.CreationTimestamp) || after.Status.Mode != want.Status.Mode || !slices.Equal(after.Status.ProxyPorts, want.Status.ProxyPorts) {
			t.Errorf("the object is %+v, was %+v", after, want)
		}
	}
	if again := resolverSlices(t.Context(), t, applications.asleep); len(again) != 1 || again[0].UID != slice.UID || again[0].ResourceVersion != slice.ResourceVersion {
		t.Errorf("the resolver slice was written: %+v, was %+v", again, slice)
	}
	if replicas := desiredReplicas(t, applications.asleep); replicas != 0 {
		t.Errorf("the sleeping target has %d replicas", replicas)
	}
	woken, err := elastiServices(applications.asleep).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil || woken.Status.Replicas != 1 {
		t.Errorf("a wake returns %+v (%v), want 1 replica", woken, err)
	}
}
