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

package route

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

const testLinger = 30 * time.Second

// openPorts has the open ports with the owners of their connections.
type openPorts struct {
	owners map[int32]string
	// rejected are the ports that cannot be opened.
	rejected map[int32]bool
}

func (o *openPorts) OpenPort(svc *service.Service, port service.Port) error {
	if o.rejected[port.ProxyPort] {
		return errors.New("address already in use")
	}
	o.owners[port.ProxyPort] = svc.Name + " " + port.AppProtocol
	return nil
}

func (o *openPorts) ClosePort(_ *service.Service, port service.Port) {
	delete(o.owners, port.ProxyPort)
}

// desired is ports with a clock and listeners of the test.
type desired struct {
	*ports
	t         *testing.T
	clock     *clocktesting.FakeClock
	open      *openPorts
	conflicts int
}

func newDesired(t *testing.T) *desired {
	t.Helper()
	d := &desired{t: t, clock: clocktesting.NewFakeClock(time.Unix(0, 0)), open: &openPorts{owners: map[int32]string{}, rejected: map[int32]bool{}}}
	d.ports = newPorts(&Options{
		Listeners: d.open, Linger: testLinger, Clock: d.clock, SharedPort: 9080, Logger: klog.Background(),
		Conflicts: func(n int) { d.conflicts = n },
	})
	return d
}

func (d *desired) service(name string) *service.Service {
	s := service.New(service.Options{Namespace: "shop", Name: name, PublicService: name, Config: &service.Config{},
		Budget: memory.NewBudget(memory.Limits{Process: 1}), Logger: klog.Background()})
	d.t.Cleanup(s.Close)
	return s
}

// wants expects the open ports, as pairs of a proxy port and an appProtocol.
func (d *desired) wants(svc *service.Service, ports ...service.Port) {
	d.t.Helper()
	if err := d.set(svc, ports); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desired) is(want string) {
	d.t.Helper()
	if got := fmt.Sprint(d.open.owners); got != want {
		d.t.Errorf("open are %s, want %s", got, want)
	}
}

// pass steps the clock and calls expire when it is due.
func (d *desired) pass(period time.Duration) {
	d.clock.Step(period)
	d.expire()
}

func port(proxyPort int32, appProtocol string) service.Port {
	return service.Port{Number: 80, AppProtocol: appProtocol, ProxyPort: proxyPort}
}

func TestPortThatChangesAndChangesBackStaysOpen(t *testing.T) {
	d := newDesired(t)
	cart := d.service("cart")
	d.wants(cart, port(10000, ""))
	d.pass(time.Second)
	d.wants(cart, port(10000, "http"))
	d.is("map[10000:cart http]")
	d.pass(time.Second)
	d.wants(cart, port(10000, ""))
	d.pass(2 * testLinger)
	d.is("map[10000:cart ]")
}

func TestPortThatChangesBeforeItsServiceIsDeletedCloses(t *testing.T) {
	d := newDesired(t)
	cart := d.service("cart")
	d.wants(cart, port(10000, ""))
	d.wants(cart, port(10001, ""))
	d.is("map[10000:cart  10001:cart ]")
	d.pass(testLinger / 2)
	d.wants(cart)
	d.pass(testLinger / 2)
	d.is("map[10001:cart ]")
	d.pass(testLinger / 2)
	d.is("map[]")
	if !d.next().IsZero() || len(d.places) != 0 || len(d.desired) != 0 {
		t.Errorf("left are %v, %v", d.places, d.desired)
	}
}

// A port that is claimed again while it lingers, by the same service or another, is not
// closed when the first linger period is over.
func TestPortThatIsWantedAgainStaysOpen(t *testing.T) {
	d := newDesired(t)
	cart, again := d.service("cart"), d.service("again")
	d.wants(cart, port(10000, ""))
	d.wants(cart)
	d.pass(testLinger / 2)
	d.wants(again, port(10000, "http"))
	d.is("map[10000:again http]")
	d.pass(testLinger)
	d.is("map[10000:again http]")
	d.wants(again)
	d.pass(testLinger / 2)
	d.wants(again, port(10000, "http"))
	d.wants(again)
	d.pass(testLinger / 2)
	d.is("map[10000:again http]")
	d.pass(testLinger / 2)
	d.is("map[]")
}

func TestFirstClaimOnAPortKeepsIt(t *testing.T) {
	d := newDesired(t)
	victim, thief := d.service("victim"), d.service("thief")
	d.wants(victim, port(10000, ""))
	d.wants(thief, port(10001, ""), port(10000, "http"))
	d.is("map[10000:victim  10001:thief ]")
	if d.conflicts != 1 {
		t.Errorf("%d conflicts are reported", d.conflicts)
	}
	// A change of the later claim, or its end, has no effect.
	d.wants(thief, port(10000, "tcp"))
	d.is("map[10000:victim  10001:thief ]")
	d.wants(thief)
	d.pass(2 * testLinger)
	d.is("map[10000:victim ]")
	if d.conflicts != 0 {
		t.Errorf("%d conflicts are reported when there is none", d.conflicts)
	}
	// When the first claim ends, the next one gets the port.
	d.wants(thief, port(10000, "tcp"))
	d.wants(victim)
	d.pass(2 * testLinger)
	d.is("map[10000:thief tcp]")
	if d.conflicts != 0 {
		t.Errorf("%d conflicts are reported when there is none", d.conflicts)
	}
}

func TestServiceThatWantsAPortTwiceHasItOnce(t *testing.T) {
	d := newDesired(t)
	cart := d.service("cart")
	d.wants(cart, port(10000, "http"), port(10000, "tcp"))
	d.is("map[10000:cart http]")
	d.wants(cart)
	d.pass(testLinger)
	d.is("map[]")
}

func TestPortThatCannotBeOpenedIsTriedAgain(t *testing.T) {
	d := newDesired(t)
	cart := d.service("cart")
	d.open.rejected[10000] = true
	for range 2 {
		if err := d.set(cart, []service.Port{port(10000, ""), port(10001, "")}); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Fatalf("got %v", err)
		}
		d.is("map[10001:cart ]")
	}
	d.open.rejected[10000] = false
	d.wants(cart, port(10000, ""), port(10001, ""))
	d.is("map[10000:cart  10001:cart ]")
	// A port that was never open does not linger.
	till := d.service("till")
	d.open.rejected[10002] = true
	if err := d.set(till, []service.Port{port(10002, "")}); err == nil {
		t.Fatal("a port opened that cannot be opened")
	}
	d.wants(till)
	if len(d.places) != 2 || !d.next().IsZero() {
		t.Errorf("left are %v", d.places)
	}
}

// On the shared port each service has a slot of its own.
func TestSharedPortHasManyOwners(t *testing.T) {
	d := newDesired(t)
	cart, till := d.service("cart"), d.service("till")
	d.wants(cart, port(9080, "http"))
	d.wants(till, port(9080, "http"))
	if d.conflicts != 0 || len(d.places) != 2 {
		t.Errorf("%d conflicts, %d places", d.conflicts, len(d.places))
	}
}
