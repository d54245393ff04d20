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
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// controllerLease is the Lease of the replica that runs the controller.
const controllerLease = "elasti-apiserver-controller"

// leaseTimeout is longer than it takes until the Lease of a dead leader has expired and
// another replica has acquired it.
const leaseTimeout = time.Minute

// startReplicas starts two servers on one external etcd in place of the shared
// one, which is back after the test.
func startReplicas(t *testing.T) (replicas [2]*environment.Server) {
	t.Helper()
	stopServer(t)
	for i := range replicas {
		replicas[i] = startReplica(t, fmt.Sprintf("%s-%d", strings.ToLower(t.Name()), i))
	}
	return replicas
}

// startReplica starts a server on an external etcd that is shared by the
// replicas of one test. The shared server must not run.
func startReplica(t *testing.T, name string, flags ...string) *environment.Server {
	t.Helper()
	replica, err := shared.NewReplica(t.Context(), name, append([]string{
		"--storage=etcd",
		"--etcd-servers=" + shared.EtcdEndpoint(),
		"--etcd-prefix=/registry/" + t.Name(),
		newStoreRecord(t, strings.ToLower(t.Name())),
		// The cluster has objects of the shared server.
		"--accept-new-store=unrecorded",
		// The endpoint of a terminating pod is used for a short time longer.
		"--shutdown-delay-duration=2s",
	}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.RemoveReplica(context.Background(), replica); err != nil {
			t.Error(err)
		}
		if t.Failed() && replica.Process() != nil {
			t.Log(replica.Process().Tail())
		}
	})
	start(t, replica)
	return replica
}

func start(t *testing.T, replica *environment.Server) {
	t.Helper()
	if err := replica.Start(t.Context()); err != nil {
		t.Fatalf("starting a replica: %v", err)
	}
}

// direct is the administrator's client of one replica, past the aggregator.
func direct(t *testing.T, replica *environment.Server, namespace string) elastiv1alpha1client.ElastiServiceInterface {
	t.Helper()
	config := rest.CopyConfig(shared.Admin)
	config.Host = fmt.Sprintf("https://%s:%d", replica.Address, replica.Port)
	config.CAData = nil
	config.Insecure = true
	return elastiClient(t, config).ElastiV1alpha1().ElastiServices(namespace)
}

// waitForLeader waits until the Lease names one of the replicas, and returns
// its index.
func waitForLeader(t *testing.T, replicas ...*environment.Server) (leader int) {
	t.Helper()
	eventuallyWithin(t, leaseTimeout, "a replica leads", func(ctx context.Context) string {
		lease, err := shared.Kubernetes.CoordinationV1().Leases(environment.SystemNamespace).Get(ctx, controllerLease, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		for i, replica := range replicas {
			if holder != "" && leads(replica, holder) {
				leader = i
				return ""
			}
		}
		return fmt.Sprintf("it is held by %q", holder)
	})
	return leader
}

// leads reports whether a replica has logged that it leads under an identity.
func leads(replica *environment.Server, identity string) bool {
	for line := range strings.Lines(replica.Process().Output()) {
		if strings.Contains(line, "Started leading") && strings.Contains(line, identity) {
			return true
		}
	}
	return false
}

// expectWorkingController creates an application and waits until resolvers are in the
// path of its Service.
func expectWorkingController(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
}

// scene is a sleeping and an awake application, and their state.
type scene struct {
	asleep, awake string
	versions      []string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{asleep: newNamespace(t), awake: newNamespace(t)}
	createApplication(t, s.asleep, 0)
	createElastiService(t, s.asleep, newElastiService("app"))
	createApplication(t, s.awake, 1)
	createElastiService(t, s.awake, newElastiService("app"))
	setReady(t, s.awake, runPod(t, s.awake, "app"), true)
	waitForCondition(t, s.asleep, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForMode(t, s.asleep, v1alpha1.ModeProxy)
	waitForMode(t, s.awake, v1alpha1.ModeServe)
	waitForNoResolverSlices(t, s.awake)
	eventually(t, "the pod is counted as ready", func(context.Context) string {
		if ready := readElastiService(t, s.awake).Status.ReadyReplicas; ready != 1 {
			return fmt.Sprintf("%d are", ready)
		}
		return ""
	})
	for namespace, asleep := range map[string]metav1.ConditionStatus{s.asleep: metav1.ConditionTrue, s.awake: metav1.ConditionFalse} {
		waitForCondition(t, namespace, v1alpha1.ConditionSleeping, asleep)
	}
	waitForCondition(t, s.awake, v1alpha1.ConditionTargetAvailable, metav1.ConditionTrue)
	s.versions = s.resourceVersions(t)
	return s
}

// resourceVersions returns the resource versions of all objects that a change of the mode writes.
func (s *scene) resourceVersions(t *testing.T) []string {
	t.Helper()
	var versions []string
	for _, namespace := range []string{s.asleep, s.awake} {
		object := readElastiService(t, namespace)
		versions = append(versions, fmt.Sprintf("%s in mode %s at %s", namespace, object.Status.Mode, object.ResourceVersion))
		for _, slice := range resolverSlices(t.Context(), t, namespace) {
			versions = append(versions, fmt.Sprintf("resolver slice %s/%s at %s", namespace, slice.UID, slice.ResourceVersion))
		}
	}
	return versions
}

func (s *scene) expectUnchanged(t *testing.T, after string) {
	t.Helper()
	if now := s.resourceVersions(t); fmt.Sprint(now) != fmt.Sprint(s.versions) {
		t.Errorf("after %s there is %v, was %v; the conditions are %+v and %+v", after, now, s.versions,
			readElastiService(t, s.asleep).Status.Conditions, readElastiService(t, s.awake).Status.Conditions)
	}
}

func TestEveryReplicaServesAndOneLeads(t *testing.T) {
	replicas := startReplicas(t)
	leader := waitForLeader(t, replicas[:]...)
	follower := replicas[1-leader]
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	if _, err := direct(t, replicas[leader], namespace).Create(t.Context(), newElastiService("app"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating at the leader: %v", err)
	}
	eventually(t, "the follower knows the object and its mode", func(ctx context.Context) string {
		object, err := direct(t, follower, namespace).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if object.Status.Mode != v1alpha1.ModeProxy {
			return fmt.Sprintf("the mode is %q", object.Status.Mode)
		}
		return ""
	})
	if _, err := direct(t, follower, namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking at the follower: %v", err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("the target has %d replicas after the wake, want 1", replicas)
	}
	if strings.Contains(follower.Process().Output(), "Started leading") {
		t.Error("both replicas have led")
	}
}

func TestControllerIsHandedOverOnACleanStop(t *testing.T) {
	replicas := startReplicas(t)
	leader := waitForLeader(t, replicas[:]...)
	applications := newScene(t)
	holders := watchLease(t)

	if err := replicas[leader].Stop(t.Context()); err != nil {
		t.Fatalf("stopping the leader: %v", err)
	}
	waitForLeader(t, replicas[1-leader])
	// A wait for the expiry of the Lease would take longer.
	if took, lasts := holders.handOver(t); took >= lasts/3 {
		t.Errorf("the Lease was taken %s after it was given up, and lasts %s", took, lasts)
	} else {
		t.Logf("the Lease was taken %s after it was given up", took)
	}
	expectWorkingController(t)
	applications.expectUnchanged(t, "the hand-over")
}

func TestControllerIsTakenOverFromALeaderThatVanished(t *testing.T) {
	replicas := startReplicas(t)
	leader := waitForLeader(t, replicas[:]...)
	applications := newScene(t)

	replicas[leader].Kill()
	if err := shared.RemoveReplica(t.Context(), replicas[leader]); err != nil {
		t.Fatal(err)
	}
	waitForLeader(t, replicas[1-leader])
	expectWorkingController(t)
	applications.expectUnchanged(t, "the leader vanished")
}

func TestRollingRestartFailsNoRequest(t *testing.T) {
	replicas := startReplicas(t)
	waitForLeader(t, replicas[:]...)
	applications := newScene(t)
	// The wake of a target that is awake changes nothing.
	client := elastiServices(applications.awake)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	const concurrency = 4
	failures := make(chan error, concurrency)
	succeeded := make(chan struct{}, 1)
	for range concurrency {
		clients.Go(func() {
			for ctx.Err() == nil {
				if _, err := client.Wake(ctx, "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
					failures <- err
					return
				}
				select {
				case succeeded <- struct{}{}:
				default:
				}
			}
		})
	}
	for _, replica := range replicas {
		if err := replica.Stop(t.Context()); err != nil {
			t.Errorf("stopping a replica: %v", err)
		}
		start(t, replica)
	}
	waitForLeader(t, replicas[:]...)
	stop()
	clients.Wait()
	close(failures)
	for err := range failures {
		t.Errorf("a wake failed during the restart: %v", err)
	}
	if len(succeeded) == 0 {
		t.Error("no wake succeeded")
	}
	applications.expectUnchanged(t, "the rolling restart")
}

// leaseWatch follows which replica holds the Lease of the controller.
type leaseWatch struct {
	events <-chan leaseEvent
}

type leaseEvent struct {
	holder string
	lasts  time.Duration
	seen   time.Time
}

func watchLease(t *testing.T) *leaseWatch {
	t.Helper()
	leases := shared.Kubernetes.CoordinationV1().Leases(environment.SystemNamespace)
	lease, err := leases.Get(t.Context(), controllerLease, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the Lease: %v", err)
	}
	watcher, err := leases.Watch(t.Context(), metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, controllerLease).String(),
		ResourceVersion: lease.ResourceVersion,
	})
	if err != nil {
		t.Fatalf("watching the Lease: %v", err)
	}
	t.Cleanup(watcher.Stop)
	// The buffer has room for all writes of a test that takes minutes.
	events := make(chan leaseEvent, 1000)
	last := ptr.Deref(lease.Spec.HolderIdentity, "")
	lasts := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	go func() {
		defer close(events)
		for event := range watcher.ResultChan() {
			lease, ok := event.Object.(*coordinationv1.Lease)
			if !ok || ptr.Deref(lease.Spec.HolderIdentity, "") == last {
				continue
			}
			last = ptr.Deref(lease.Spec.HolderIdentity, "")
			events <- leaseEvent{holder: last, lasts: lasts, seen: time.Now()}
		}
	}()
	return &leaseWatch{events: events}
}

// handOver waits until the Lease is given up and taken. It returns how long
// that took, and how long a Lease lasts that is not given up.
func (w *leaseWatch) handOver(t *testing.T) (took, lasts time.Duration) {
	t.Helper()
	given := w.next(t)
	if given.holder != "" {
		t.Fatalf("the Lease went to %q without being given up", given.holder)
	}
	taken := w.next(t)
	if taken.holder == "" {
		t.Fatal("the Lease was given up twice")
	}
	return taken.seen.Sub(given.seen), taken.lasts
}

func (w *leaseWatch) next(t *testing.T) leaseEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), leaseTimeout)
	defer cancel()
	select {
	case event, ok := <-w.events:
		if !ok {
			t.Fatal("the watch of the Lease ended")
		}
		return event
	case <-ctx.Done():
		t.Fatal("the holder of the Lease did not change")
	}
	return leaseEvent{}
}
