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

// Package installcheck finds out what keeps an installation from serving, as far as a
// client of the cluster can see it, and says for each problem what to do.
//
// It changes nothing, and knows nothing of how the components work. Begin with Checker.
package installcheck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/installcheck/registration"
)

const (
	// checkPeriod is the pause between two checks of an installation that does not serve
	// yet.
	checkPeriod = 2 * time.Second
	// checkTimeout ends a check that hangs.
	checkTimeout = 20 * time.Second
)

// Options configure a Checker. All fields but Clock are required.
type Options struct {
	Kubernetes  kubernetes.Interface
	APIServices apiregistrationclient.Interface
	Elasti      versioned.Interface
	// Namespace is that of the installation.
	Namespace string
	// Clock is the time. Defaults to the real clock.
	Clock clock.Clock
}

// Checker checks an installation. Make it with New.
type Checker struct {
	options Options
}

// NewForConfig returns a checker of the cluster that config leads to, with the real clock. It
// makes no request.
func NewForConfig(config *rest.Config, namespace string) (*Checker, error) {
	host, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client of the cluster: %w", err)
	}
	registrations, err := apiregistrationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client for the APIService: %w", err)
	}
	elasti, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client for ElastiServices: %w", err)
	}
	return New(Options{Kubernetes: host, APIServices: registrations, Elasti: elasti, Namespace: namespace})
}

// New returns a checker. It makes no request.
func New(options Options) (*Checker, error) {
	if options.Kubernetes == nil || options.APIServices == nil || options.Elasti == nil || options.Namespace == "" {
		return nil, errors.New("installcheck: Kubernetes, APIServices, Elasti and Namespace are needed")
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Checker{options: options}, nil
}

// Problem is what keeps an installation from serving.
type Problem = registration.Problem

// problem returns a Problem. args are formatted into what; do is used as it is.
func problem(do, what string, args ...any) Problem {
	return *registration.NewProblem(do, what, args...)
}

// Await checks until there is no problem, or the timeout is over. It then returns the
// problems of the last check.
func (c *Checker) Await(ctx context.Context, timeout time.Duration) []Problem {
	deadline := c.options.Clock.Now().Add(timeout)
	for {
		problems := c.Check(ctx)
		if len(problems) == 0 || ctx.Err() != nil || !c.options.Clock.Now().Before(deadline) {
			return problems
		}
		select {
		case <-ctx.Done():
			return problems
		case <-c.options.Clock.After(checkPeriod):
		}
	}
}

// Check returns the problems that there are now.
func (c *Checker) Check(ctx context.Context) []Problem {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	problems := c.checkDeployment(ctx, serverName)
	problems = append(problems, c.checkDeployment(ctx, resolverName)...)
	// What is wrong with the registration is often a consequence of what is wrong with
	// the pods, which are reported first.
	return append(problems, c.checkAPI(ctx)...)
}
