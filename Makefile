# elasti-apiserver: scale-to-zero for anything behind a Kubernetes Service.
# `make help` lists the targets.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Binaries of tools come before those of the system, so that every target uses
# the versions that hack/tools pins.
TOOLS := $(CURDIR)/_output/tools/bin
export PATH := $(TOOLS):$(PATH)
# One variant of each package: the tools, the images and the tests share what is
# compiled, most of which is libraries. The race detector needs another one, with cgo.
export GOFLAGS ?= -trimpath
export CGO_ENABLED ?= 0
# The local cluster's kubeconfig, unless the caller has chosen a cluster.
export KUBECONFIG ?= $(CURDIR)/_output/cluster/kubeconfig

NODES ?= 1
FUZZTIME ?= 60s
FUZZTIME_EACH ?= 10m
SEED ?= 1
KILLS ?= 50
RESTARTS ?= 10
FOR ?= 60s
FOR_SHORT ?= 20s
SOAK_FOR ?= 10m
BENCH ?= all
CHAOS_RATE ?= 1000
CHAOS_DURATION ?= 60s

##@ Use

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show how one request wakes an application and quiet puts it to sleep, on a local cluster or that of KUBECONFIG=FILE.
	@hack/demo/demo.sh $(if $(filter command,$(origin KUBECONFIG)),'$(KUBECONFIG)')

.PHONY: cluster-up
cluster-up: ## Start a real Kubernetes cluster of NODES (1, or 2) on this machine (Linux, root). Safe to repeat.
	@NODES=$(NODES) hack/cluster/up.sh

.PHONY: cluster-down
cluster-down: ## Stop that cluster and remove what it left in the system.
	@hack/cluster/down.sh

.PHONY: images
images: ## Build the container images as archives in _output/images, without Docker.
	@hack/images/build.sh

.PHONY: deploy
deploy: ## Deploy to the cluster of KUBECONFIG (by default the local one).
	@hack/deploy.sh

##@ Develop

.PHONY: build
build: ## Build the binaries, the plugin of kubectl too, into _output/bin.
	go build -o _output/bin/ ./cmd/...

.PHONY: generate
generate: ## Generate clients, deep copies, defaults, conversions and OpenAPI from pkg/apis, the README of the chart, the reference of metrics, the PrometheusRule and the dashboard.
	hack/update-codegen.sh
	go run ./hack/chartreadme charts/elasti
	go run ./hack/metricsreference docs/metrics.md
	go run ./hack/monitoring artifacts

.PHONY: format
format: ## Format the Go code.
	gofmt -w $$(git ls-files '*.go' | grep -v '^pkg/generated/')

##@ Check

.PHONY: verify
verify: ## Check format, vet, lint, generated code, go.mod, import direction, manifests, the chart, metrics, alerts, scripts, docs, words and commit subjects.
	hack/verify/verify.sh

.PHONY: test
test: ## Run unit, integration and end-to-end tests, a random sequence for FOR_SHORT (20s), and fuzz for FUZZTIME (60s).
	FOR=$(FOR_SHORT) hack/test.sh unit integration properties fuzz e2e

.PHONY: test-unit
test-unit: ## Run the unit tests.
	hack/test.sh unit

.PHONY: test-integration
test-integration: ## Run the tests on a real etcd and kube-apiserver.
	hack/test.sh integration

.PHONY: test-properties
test-properties: ## Drive the random sequence SEED (1) of edits, wakes, restarts and losses for FOR (60s), and check the invariants after each.
	SEED=$(SEED) FOR=$(FOR) hack/test.sh properties

.PHONY: test-storage
test-storage: ## Run the tests of the API with ElastiServices stored in the host cluster.
	hack/test.sh storage

.PHONY: test-durability
test-durability: ## Kill the server KILLS (50) times for each storage, and restart its host RESTARTS (10) times, under writes: none that was acknowledged is lost.
	KILLS=$(KILLS) RESTARTS=$(RESTARTS) hack/test.sh durability

.PHONY: test-fuzz
test-fuzz: ## Fuzz what parses input from outside, FUZZTIME (60s) in all.
	FUZZTIME=$(FUZZTIME) hack/test.sh fuzz

.PHONY: fuzz-long
fuzz-long: ## Fuzz each of these parsers for FUZZTIME_EACH (10m).
	FUZZTIME_EACH=$(FUZZTIME_EACH) hack/test.sh fuzz

.PHONY: test-e2e
test-e2e: ## Run the end-to-end tests on the local cluster.
	hack/test.sh e2e

.PHONY: test-uninstall
test-uninstall: ## Take the product out of the local cluster in several orders while applications sleep.
	hack/test.sh uninstall

.PHONY: test-install
test-install: ## Install with Helm 3 and 4, kubectl and kustomize on the local cluster, and upgrade, roll back and uninstall while applications sleep. Removes the product from it.
	hack/test.sh install

.PHONY: test-cycles
test-cycles: ## Put applications to sleep by each type of trigger and wake them, on the local cluster.
	hack/test.sh cycles

.PHONY: test-more
test-more: ## Databases, a real browser, used up proxy ports and a rolling restart of everything, on the local cluster.
	hack/test.sh more

.PHONY: test-autoscalers
test-autoscalers: ## Targets and autoscalers that other controllers run, with the real ones, on the local cluster.
	hack/test.sh autoscalers

.PHONY: test-nodes
test-nodes: ## Kill a node of a local cluster of two, with the leader on it, under requests to sleeping targets.
	hack/test.sh nodes

.PHONY: soak
soak: ## Sleep and wake a hundred times under 200 requests/s, then restart parts at random for SOAK_FOR (10m).
	SOAK_FOR=$(SOAK_FOR) hack/test.sh soak

.PHONY: chaos
chaos: ## Kill and roll out resolvers under CHAOS_RATE (1000) requests/s to applications that sleep and wake, for CHAOS_DURATION (60s).
	CHAOS_RATE=$(CHAOS_RATE) CHAOS_DURATION=$(CHAOS_DURATION) hack/chaos.sh

.PHONY: bench
bench: ## Run the benchmarks (BENCH=name for one of them); prints a table, writes _output/bench.json.
	hack/bench.sh $(BENCH)
