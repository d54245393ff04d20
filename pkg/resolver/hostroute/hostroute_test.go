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

package hostroute

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

func TestParse(t *testing.T) {
	for host, want := range map[string]string{
		"cart.shop":                           "shop/cart 0",
		"cart.shop:8080":                      "shop/cart 8080",
		"cart.shop.svc":                       "shop/cart 0",
		"Cart.Shop.SVC.":                      "shop/cart 0",
		"cart.shop.svc.cluster.local":         "shop/cart 0",
		"cart.shop.svc.cluster.local.:80":     "shop/cart 80",
		"cart.shop.svc.cluster.local:80/*":    "shop/cart 80",
		"cart":                                "",
		"":                                    "",
		".":                                   "",
		".shop":                               "",
		"cart.":                               "",
		"cart..svc":                           "",
		"cart.shop.pod":                       "",
		"cart.shop.svc.example.com":           "",
		"cart.shop.svc.cluster.local.evil":    "",
		"cart.shop:":                          "",
		"cart.shop:0":                         "",
		"cart.shop:65536":                     "",
		"cart.shop:http":                      "",
		"cart.shop:80:80":                     "",
		"10.0.0.1":                            "",
		"10.0":                                "0/10 0",
		"[fd00::1]:80":                        "",
		"fd00::1":                             "",
		"www.shop.example.com":                "",
		"cart.shop.svc.cluster.local@evil:80": "",
	} {
		name, ok := Parse(host, "cluster.local")
		got := ""
		if ok {
			got = fmt.Sprintf("%s %d", name.Service, name.Port)
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"cart.shop", "cart.shop.svc.cluster.local:80/x", "[::1]:80", "a.b.svc.", "1.2.3.4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) {
		name, ok := Parse(host, "cluster.local")
		if !ok {
			return
		}
		if name.Service.Name == "" || name.Service.Namespace == "" || strings.ContainsAny(name.Service.Name+name.Service.Namespace, "./:") {
			t.Errorf("%q is %v", host, name)
		}
	})
}

func TestTable(t *testing.T) {
	make := func(name string) *service.Service {
		s := service.New(service.Options{
			Namespace: "shop", Name: name, PublicService: name, Config: &service.Config{},
			Budget: memory.NewBudget(memory.Limits{Process: 1}), Logger: klog.Background(),
		})
		t.Cleanup(s.Close)
		return s
	}
	d := New(Options{ClusterDomain: "cluster.local"})
	cart, till := make("cart"), make("till")
	web, admin, odd := service.Port{Number: 80}, service.Port{Number: 8080}, service.Port{Number: 9000}
	d.Set(cart, web)
	d.Set(cart, admin)
	d.Set(till, odd)
	finds := func(host string, want *service.Service, port int32) {
		t.Helper()
		if got, found := d.Find(host); got != want || found.Number != port {
			t.Errorf("%s is %v, port %d", host, got, found.Number)
		}
	}
	finds("cart.shop", cart, 80)
	finds("cart.shop:8080", cart, 8080)
	finds("cart.shop:9000", nil, 0)
	finds("till.shop", till, 9000)
	finds("till.shop:80", nil, 0)
	finds("cart.other", nil, 0)
	d.Remove(cart, web)
	finds("cart.shop", cart, 8080)
	d.Remove(cart, admin)
	finds("cart.shop", nil, 0)

	// What replaces a service is not removed with it.
	replaced := make("till")
	d.Set(replaced, odd)
	d.Remove(till, odd)
	finds("till.shop", replaced, 9000)
}
