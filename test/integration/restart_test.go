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
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// shutdownTimeout is well below the default grace period of a pod.
const shutdownTimeout = 20 * time.Second

// stopServer stops the shared server. It is started again after the test at
// the latest.
func stopServer(t *testing.T) {
	t.Helper()
	ensureRunningAfter(t)
	if err := shared.Server.Stop(t.Context()); err != nil {
		t.Fatalf("stopping the server: %v", err)
	}
}

// killServer is stopServer with kill -9.
func killServer(t *testing.T) {
	t.Helper()
	ensureRunningAfter(t)
	shared.Server.Kill()
}

func ensureRunningAfter(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		select {
		case <-shared.Server.Process().Exited():
			if err := shared.Server.Start(context.Background()); err != nil {
				t.Errorf("starting the server for the tests that follow: %v", err)
			}
		default:
		}
	})
}

// startAgain starts the shared server again, and waits until it is available.
func startAgain(t *testing.T) {
	t.Helper()
	if err := shared.Server.Start(t.Context()); err != nil {
		t.Fatalf("starting the server again: %v", err)
	}
}

func TestEveryObjectSurvivesKill(t *testing.T) {
	const objects = 20
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	before := map[string]*v1alpha1.ElastiService{}
	for i := range objects {
		// The Services do not exist, so that no controller changes the objects.
		object := newElastiService(fmt.Sprintf("app-%d", i))
		object.Spec.Service = object.Name
		created := createElastiService(t, namespace, object)
		before[created.Name] = created
	}
	eventually(t, "the controller has seen every object", func(ctx context.Context) string {
		list, err := elastiServices(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for i := range list.Items {
			if len(list.Items[i].Status.Conditions) == 0 {
				return list.Items[i].Name + " has no conditions"
			}
			before[list.Items[i].Name] = &list.Items[i]
		}
		return ""
	})
	// The server is killed right after the last acknowledged write.
	last, err := elastiServices(namespace).Patch(t.Context(), "app-0", types.MergePatchType, []byte(`{"metadata":{"labels":{"written":"last"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("patching: %v", err)
	}
	before[last.Name] = last

	killServer(t)
	startAgain(t)

	after, err := elastiServices(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("listing after the restart: %v", err)
	}
	if len(after.Items) != objects {
		t.Errorf("%d objects are there, want %d", len(after.Items), objects)
	}
	for _, object := range after.Items {
		// The controller may have written since, before or after.
		want := before[object.Name]
		order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, want.ResourceVersion)
		if object.UID != want.UID || err != nil || order < 0 {
			t.Errorf("%s has UID %s and version %s, want %s and at least %s", object.Name, object.UID, object.ResourceVersion, want.UID, want.ResourceVersion)
		}
	}
}

// A restart alone must not change the status.
func TestRestartChangesNeitherModesNorProxyPorts(t *testing.T) {
	asleep, awake := newNamespace(t), newNamespace(t)
	createApplication(t, asleep, 0)
	createElastiService(t, asleep, newElastiService("app"))
	createApplication(t, awake, 1)
	createElastiService(t, awake, newElastiService("app"))
	pod := runPod(t, awake, "app")
	setReady(t, awake, pod, true)
	waitForMode(t, asleep, v1alpha1.ModeProxy)
	waitForMode(t, awake, v1alpha1.ModeServe)
	waitForNoResolverSlices(t, awake)
	before := map[string]*v1alpha1.ElastiService{asleep: readElastiService(t, asleep), awake: readElastiService(t, awake)}
	slice := resolverSlices(t.Context(), t, asleep)[0]

	killServer(t)
	startAgain(t)

	// The controller has started once it has synced a new object.
	other := newNamespace(t)
	createApplication(t, other, 0)
	createElastiService(t, other, newElastiService("app"))
	waitForMode(t, other, v1alpha1.ModeProxy)
	for namespace, want := range before {
		after := readElastiService(t, namespace)
		if after.Status.Mode != want.Status.Mode || !slices.Equal(after.Status.ProxyPorts, want.Status.ProxyPorts) {
			t.Errorf("the status is %+v after the restart, was %+v", after.Status, want.Status)
		}
	}
	if again := resolverSlices(t.Context(), t, asleep); len(again) != 1 || again[0].UID != slice.UID || again[0].ResourceVersion != slice.ResourceVersion {
		t.Errorf("the resolver slice was written by the restart: %+v, was %+v", again, slice)
	}
	if present := resolverSlices(t.Context(), t, awake); len(present) > 0 {
		t.Errorf("an awake Service has the resolver slices %+v after the restart", present)
	}
}

func TestServerEndsSoonAfterSIGTERM(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	// An open watch must not delay the end of the server.
	watcher, err := elastiServices(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("watching: %v", err)
	}
	defer watcher.Stop()
	process := shared.Server.Process()
	started := time.Now()
	stopServer(t)
	if took := time.Since(started); took > shutdownTimeout {
		t.Errorf("the server took %s to end", took)
	}
	if code := process.ExitCode(); code != 0 {
		t.Errorf("the exit code is %d, want 0:\n%s", code, process.Tail())
	}
	startAgain(t)
}

// An APIService that is replaced, such as by applying the manifests again,
// gets its certificate authority back.
func TestStartPublishesTheCertificateAuthority(t *testing.T) {
	stopServer(t)
	kubectl := newKubectl(t, environment.SystemNamespace)
	if _, err := kubectl.Run(t.Context(), "", "patch", "apiservice", environment.APIServiceName, "--type=json", "--patch", `[{"op":"remove","path":"/spec/caBundle"}]`); err != nil {
		t.Fatal(err)
	}
	startAgain(t)
	bundle, err := kubectl.Run(t.Context(), "", "get", "apiservice", environment.APIServiceName, "--output=jsonpath={.spec.caBundle}")
	if err != nil || bundle == "" {
		t.Errorf("the caBundle is %q (error: %v)", bundle, err)
	}
	insecure, err := kubectl.Run(t.Context(), "", "get", "apiservice", environment.APIServiceName, "--output=jsonpath={.spec.insecureSkipTLSVerify}")
	if err != nil || (insecure != "" && insecure != "false") {
		t.Errorf("insecureSkipTLSVerify is %q (error: %v)", insecure, err)
	}
}

// The restore of a backup, or a change of the backend, resets resource versions. A watcher
// that reconnects to another server at once, as in a rollout, continues from its last
// version and would receive no events until the new store has reached it.
func TestWatchersOfAReplacedStoreMustListAgain(t *testing.T) {
	const changes = 100
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("before"))
	var last string
	for i := range changes {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"change":"%d"}}}`, i)
		changed, err := elastiServices(namespace).Patch(t.Context(), "before", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("changing an object: %v", err)
		}
		last = changed.ResourceVersion
	}

	stopServer(t)
	away := shared.Server.DataDir + ".away"
	if err := os.Rename(shared.Server.DataDir, away); err != nil {
		t.Fatalf("taking the store away: %v", err)
	}
	flags := shared.Server.Flags
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(shared.Server.Stop(ctx), os.RemoveAll(shared.Server.DataDir), os.Rename(away, shared.Server.DataDir)); err != nil {
			t.Errorf("putting the store back: %v", err)
		}
		startWithNewStore(ctx, t)
		shared.Server.Flags = flags
	})
	startWithNewStore(t.Context(), t)
	watching, err := elastiServices(namespace).Watch(t.Context(), metav1.ListOptions{ResourceVersion: last})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("watching from a version of the store before ended with %v, want that it is expired", err)
	}
	if err == nil {
		watching.Stop()
	}
}

// startWithNewStore starts the shared server on another store than the recorded one.
func startWithNewStore(ctx context.Context, t *testing.T) {
	t.Helper()
	recorded, err := shared.RecordedStore(ctx, environment.StoreRecordName)
	if err != nil {
		t.Fatal(err)
	}
	shared.Server.Flags = append(slices.Clip(shared.Server.Flags), "--accept-new-store="+recorded)
	if err := shared.Server.Start(ctx); err != nil {
		t.Fatalf("starting the server with another store: %v", err)
	}
}

// The store has no port of its own: a client that could connect to it could read and
// write everything without authentication.
func TestServerListensOnItsSecurePortOnly(t *testing.T) {
	listening := listeners(t, shared.Server.Process().PID())
	if want := fmt.Sprintf("%s:%d", shared.Server.Address, shared.Server.Port); len(listening) != 1 || listening[0] != want {
		t.Errorf("the server listens on %v, want %s only", listening, want)
	}
	info, err := os.Stat(filepath.Join(shared.Server.DataDir, "sockets"))
	if err != nil {
		t.Fatalf("reading the sockets of the store: %v", err)
	}
	if mode := info.Mode().Perm(); mode != 0o700 {
		t.Errorf("the folder of the sockets has mode %o, want 700", mode)
	}
}

// listeners returns the TCP addresses that a process listens on.
func listeners(t *testing.T, pid int) []string {
	t.Helper()
	sockets := map[string]bool{}
	descriptors := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(descriptors)
	if err != nil {
		t.Fatalf("reading the open files of the server: %v", err)
	}
	for _, entry := range entries {
		// A descriptor may be closed meanwhile.
		if target, err := os.Readlink(filepath.Join(descriptors, entry.Name())); err == nil {
			sockets[target] = true
		}
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatalf("reading the sockets of this machine: %v", err)
		}
		for _, line := range strings.Split(string(content), "\n")[1:] {
			const local, state, inode, listen = 1, 3, 9, "0A"
			fields := strings.Fields(line)
			if len(fields) <= inode || fields[state] != listen || !sockets["socket:["+fields[inode]+"]"] {
				continue
			}
			found = append(found, decodeAddress(t, fields[local]))
		}
	}
	return found
}

// decodeAddress reads an address as /proc/net/tcp writes it. An address of IPv6
// stays as it is.
func decodeAddress(t *testing.T, encoded string) string {
	t.Helper()
	var a, b, c, d byte
	var port int
	if len(encoded) != len("0100007F:0000") {
		return encoded
	}
	if _, err := fmt.Sscanf(encoded, "%02X%02X%02X%02X:%04X", &d, &c, &b, &a, &port); err != nil {
		t.Fatalf("reading the address %q: %v", encoded, err)
	}
	return fmt.Sprintf("%d.%d.%d.%d:%d", a, b, c, d, port)
}
