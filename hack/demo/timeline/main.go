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

// Command timeline sends one request to a sleeping ElastiService and prints
// what happened until it had a response, or until its target sleeps again, and
// when, as the components of the cluster recorded it.
//
// It knows nothing of how the cluster was made. Begin with run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
)

// serveTimeout is how long after the response to wait until the traffic goes
// straight to the pod.
const serveTimeout = 15 * time.Second

// asleepTimeout is how long after that to wait for the target to sleep again,
// beside its cooldown.
const asleepTimeout = 60 * time.Second

type options struct {
	namespace, name   string
	resolverNamespace string
	auditLog          string
	accessLogs        bool
	untilAsleep       bool
	command           []string
	// expect is what the client has to print.
	expect string
}

func main() {
	var o options
	flag.StringVar(&o.namespace, "namespace", "default", "namespace of the ElastiService")
	flag.StringVar(&o.name, "elastiservice", "", "name of the ElastiService (required)")
	flag.StringVar(&o.resolverNamespace, "resolver-namespace", "elasti-system", "namespace of the resolvers")
	flag.StringVar(&o.auditLog, "audit-log", "", "audit log of the Kubernetes API server, where it is a file on this machine")
	flag.BoolVar(&o.accessLogs, "access-logs", true, "include the access logs of the resolvers, which have to run with --access-log")
	flag.BoolVar(&o.untilAsleep, "until-asleep", false, "go on until the target sleeps again")
	flag.StringVar(&o.expect, "expect", "", "text that the client prints when the application has responded; without it the command fails")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: timeline [flags] -- COMMAND... (the client that sends the request)")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.command = flag.Args()
	if o.name == "" || len(o.command) == 0 {
		flag.Usage()
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "timeline:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	config, err := loadConfig()
	if err != nil {
		return err
	}
	host, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	elasti, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}

	watched, err := newObserver(ctx, host, elasti, o.namespace, o.name)
	if err != nil {
		return err
	}
	watching, stopWatching := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stopWatching()
	started := make(chan struct{})
	ended.Go(func() { watched.Run(watching, started) })
	select {
	case <-started:
	case <-ctx.Done():
		return ctx.Err()
	}

	var recorded timeline
	start := time.Now()
	if err := request(ctx, o.command, o.expect, &recorded); err != nil {
		return err
	}
	// What happened until then is worth seeing, also where it does not come to rest.
	waitErr := watched.awaitSleep(ctx, start, o.untilAsleep)
	if ctx.Err() != nil {
		return waitErr
	}
	watched.addMoments(start, &recorded)
	if o.accessLogs {
		if err := addResolverRecords(ctx, host, o, watched.service, start, &recorded); err != nil {
			return err
		}
	}
	if o.auditLog != "" {
		if err := addAuditRecords(o, start, &recorded); err != nil {
			return err
		}
	}
	fmt.Println()
	if err := recorded.print(os.Stdout, start); err != nil {
		return err
	}
	if summary := recorded.summary(); summary != "" {
		fmt.Printf("\n%s\n", summary)
	}
	return waitErr
}

// request runs the client, shows it and what it prints, and records when it
// started and ended. It is an error when the client does not print the expected text.
func request(ctx context.Context, command []string, expect string, into *timeline) error {
	fmt.Println("$", strings.Join(command, " "))
	client := exec.CommandContext(ctx, command[0], command[1:]...)
	var printed strings.Builder
	client.Stdout, client.Stderr = io.MultiWriter(os.Stdout, &printed), os.Stderr
	into.add(time.Now(), command[0], "%s starts", command[0])
	if err := client.Run(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", command[0], err), ctx.Err())
	}
	if !strings.Contains(printed.String(), expect) {
		return fmt.Errorf("%s did not get the application's response, which has %q in it", command[0], expect)
	}
	into.add(time.Now(), command[0], "%s has the response and ends", command[0])
	return nil
}

func loadConfig() (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return config, nil
}
