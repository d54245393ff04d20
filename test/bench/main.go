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

// Command bench measures the product on the cluster that KUBECONFIG names, and
// its peers beside it in the same run. It prints a table and writes the key
// figures to a file.
//
// It knows nothing of the budgets, which docs/benchmarks.md has. Begin with main.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// benchmark is one thing to measure.
type benchmark struct {
	name string
	// alone is true when it needs no cluster.
	alone bool
	// what it measures, for the usage text.
	what string
	run  func(context.Context, *bench) error
}

// benchmarks are run in this order: those that need a quiet cluster first.
func benchmarks() []benchmark {
	return []benchmark{
		{name: "coldstart", what: "one request, and 50 at once, to an application at zero", run: coldStart},
		{name: "coldstart1000", what: "1,000 requests at once to an application at zero", run: coldStartThousand},
		{name: "wake", what: "wakes beside a patch of the same scale", run: measureWakes},
		{name: "held10k", what: "memory for 10,000 requests that one resolver holds", run: held},
		{name: "pile", what: "memory for 200 large responses of which an HTTP/2 client reads none", run: pile},
		{name: "helduploads", what: "memory for 500 held uploads in HTTP/2", run: heldUploads},
		{name: "idle10k", what: "memory for 10,000 idle connections after a body in chunks", run: idle},
		{name: "churn", what: "memory after 200,000 clients have come and gone", run: churn},
		{name: "forward", what: "forwarding beside nginx, HAProxy, nghttpx and a bare net/http reverse proxy", run: forward},
		{name: "awake", what: "wake calls of an application that is awake", run: measureAwakeWake},
		{name: "api", what: "calls of the API beside a CustomResourceDefinition of the same schema, on a control plane of their own", run: measureAPI, alone: true},
		{name: "descent", what: "scale-downs of applications under steady traffic (-descents of them)", run: scaleDown},
		{name: "switch", what: "applications that sleep and wake under steady traffic", run: switching},
		{name: "failover", what: "wakes while a replica of the API server is killed", run: failover},
		{name: "triggers10k", what: "10,000 ElastiServices whose triggers query one Prometheus server", run: measureTriggers, alone: true},
		{name: "storm", what: "1,000 sleeping ElastiServices that are all woken within a second, on a control plane of their own", run: storm, alone: true},
		{name: "scale10k", what: "10,000 ElastiServices on a control plane of their own: memory, cold start, rest", run: scaleTenThousand, alone: true},
	}
}

// bench is what a benchmark works with.
type bench struct {
	// Cluster is nil for a benchmark that needs none.
	*cluster.Cluster
	*report
	// triggers is how many ElastiServices triggers10k has, objects how many of
	// each kind api lists.
	triggers, objects int
}

func main() {
	name := flag.String("benchmark", "all", "benchmark to run, or all")
	output := flag.String("output", "", "file to write the key figures to, as JSON; it keeps those that are not measured now (required)")
	reverseProxy := flag.String("reverse-proxy", "", "be a bare reverse proxy instead: the address to listen on, a comma, and the one to forward to")
	http2 := flag.Bool("http2", false, "with -reverse-proxy, speak HTTP/2 on both sides, without TLS")
	quietPrometheus := flag.String("quiet-prometheus", "", "be a Prometheus server without any traffic instead: the address to listen on")
	triggers := flag.Int("triggers", 10000, "number of ElastiServices of triggers10k")
	objects := flag.Int("objects", apiObjects, "number of objects of each kind that api lists")
	flag.Usage = usage
	flag.Parse()
	if address, target, found := strings.Cut(*reverseProxy, ","); found {
		fmt.Fprintln(os.Stderr, "bench:", serveReverseProxy(address, target, *http2))
		os.Exit(1)
	}
	if *quietPrometheus != "" {
		fmt.Fprintln(os.Stderr, "bench:", serveQuietPrometheus(*quietPrometheus))
		os.Exit(1)
	}
	if *output == "" || flag.NArg() > 0 {
		usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *output, bench{triggers: *triggers, objects: *objects}); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(flag.CommandLine.Output(), "usage: bench -output FILE [-benchmark NAME]")
	flag.PrintDefaults()
	for _, b := range benchmarks() {
		fmt.Fprintf(flag.CommandLine.Output(), "  %-12s %s\n", b.name, b.what)
	}
}

// run runs the named benchmark, or all of them. A benchmark that fails does not keep the
// others from running.
func run(ctx context.Context, name, output string, settings bench) error {
	selected, err := selectBenchmarks(name)
	if err != nil {
		return err
	}
	var connected *cluster.Cluster
	if slices.ContainsFunc(selected, func(b benchmark) bool { return !b.alone }) {
		if connected, err = cluster.Connect(ctx); err != nil {
			return err
		}
		restore, err := withDefaultResolvers(ctx, connected)
		defer restore()
		if err != nil {
			return err
		}
	}
	var failures []error
	for _, b := range selected {
		fmt.Printf("== %s: %s\n", b.name, b.what)
		measured := newReport()
		settings.Cluster, settings.report = connected, measured
		if err := b.run(ctx, &settings); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", b.name, err))
			// What it has measured before is shown, and not recorded.
			if err := measured.print(os.Stdout); err != nil {
				return err
			}
			continue
		}
		if err := measured.print(os.Stdout); err != nil {
			return err
		}
		if err := measured.mergeInto(output); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failures...)
}

func selectBenchmarks(name string) ([]benchmark, error) {
	all := benchmarks()
	if name == "all" {
		return all, nil
	}
	var names []string
	for _, b := range all {
		if b.name == name {
			return []benchmark{b}, nil
		}
		names = append(names, b.name)
	}
	return nil, fmt.Errorf("there is no benchmark %q; there are %s, and all", name, strings.Join(names, ", "))
}
