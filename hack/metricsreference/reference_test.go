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

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metrics"
	"github.com/truefoundry/elasti-apiserver/test/repository"
)

// emptyPage has a place for each table.
var emptyPage = "Before\n" + begin("elasti-apiserver") + end("elasti-apiserver") + begin("elasti-resolver") + end("elasti-resolver") + begin("libraries") + end("libraries") + "after\n"

func TestDescriptionsAreParsed(t *testing.T) {
	vector := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "shop_requests_total", Help: "Requests {of \"all\" kinds}, by method | status.", ConstLabels: prometheus.Labels{"a": "}"},
	}, []string{"method", "status"})
	described, err := describe(vector)
	if err != nil {
		t.Fatal(err)
	}
	if len(described) != 1 || described[0].name != "shop_requests_total" || described[0].help != "Requests {of \"all\" kinds}, by method | status." || !slices.Equal(described[0].labels, []string{"method", "status"}) {
		t.Errorf("the description is parsed as %+v", described)
	}
	described[0].kind = kindOf(vector, described[0].name)
	if table := ownTable(described); !strings.HasSuffix(table, "| `shop_requests_total` | counter | `method`, `status` | Requests {of \"all\" kinds}, by method \\| status. |\n\n") {
		t.Errorf("the table is\n%s", table)
	}
	if _, err := parse("Desc{}"); err == nil {
		t.Error("a description of another form is accepted")
	}
}

func TestPageHasTheTables(t *testing.T) {
	page := filepath.Join(t.TempDir(), "metrics.md")
	if err := os.WriteFile(page, []byte(emptyPage), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := files(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `elasti_operator_mode` | gauge | `crd_name`, `namespace` |",
		"| `elasti_operator_asleep_seconds_total` | counter | `crd_name`, `namespace` |",
		"| `elasti_operator_store_bytes` | gauge |  |",
		"| `elasti_resolver_hold_seconds` | histogram | `namespace`, `service` |",
		"| `elasti_resolver_panics_total` | counter |  |",
		"| `apiserver_request_total` | ",
		"| `etcd_request_duration_seconds` | ",
	} {
		if !strings.Contains(string(made[page]), "\n"+want) {
			t.Errorf("there is no row %s", want)
		}
	}
	if err := os.WriteFile(page, []byte("no table\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := files(page); err == nil {
		t.Error("a page without a place for the tables is accepted")
	}
}

// queue has the values of the gauges of a service.
type queue struct{}

func (queue) Held() int     { return 0 }
func (queue) InFlight() int { return 0 }

// The kinds of what is computed when it is collected follow from the names.
func TestKindsAreThoseOfWhatIsCollected(t *testing.T) {
	reference, err := resolverMetrics()
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	m, err := metrics.New(registry, process{})
	if err != nil {
		t.Fatal(err)
	}
	m.Service("shop", "cart", queue{})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		kind := strings.ToLower(family.GetType().String())
		if !slices.ContainsFunc(reference, func(m metric) bool { return m.name == family.GetName() && m.kind == kind }) {
			t.Errorf("%s is a %s, which the reference does not say", family.GetName(), kind)
		}
	}
}

// process has the values of the metrics of a process.
type process struct{}

func (process) Listeners() int          { return 0 }
func (process) Connections() int        { return 0 }
func (process) HeldBytes() int64        { return 0 }
func (process) HeldBytesLimit() int64   { return 0 }
func (process) ConnectionLimit() int    { return 0 }
func (process) AccessLogDropped() int64 { return 0 }

// A metric that no constructor called here registers would be missing on the page.
func TestEachNameInTheCodeIsInTheReference(t *testing.T) {
	server, _, err := serverMetrics()
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := resolverMetrics()
	if err != nil {
		t.Fatal(err)
	}
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`"(elasti_(?:operator|resolver)_[A-Za-z_]*[A-Za-z])"`)
	found := 0
	err = filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range name.FindAllStringSubmatch(string(code), -1) {
			found++
			if !slices.ContainsFunc(append(server, resolver...), func(m metric) bool { return m.name == match[1] }) {
				t.Errorf("%s has the metric %s, which is not in the reference", path, match[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 20 {
		t.Errorf("the code has the names of %d metrics, want all of elasti-apiserver", found)
	}
}
