# `make` prints the targets. What takes long to build is kept outside of the checkout: in Go's caches and in BERTH_CACHE.

.DEFAULT_GOAL := help
SHELL := /bin/bash

include bundle/bundle.mk
include bundle/apiserver/apiserver.mk
include packaging/packaging.mk
include test/controlplane/controlplane.mk
include test/metricsserver/metricsserver.mk
include test/kubelet/kubelet.mk
include test/kubeadm/kubeadm.mk
include test/vm/vm.mk

# Every folder with a go.mod is a module of its own, which ./... of the root does not see. Those of tools/, test/metricsserver, test/kubelet and test/coredns pin programs and have no code to test.
MODULES := . $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod))
CODE    := $(filter-out tools test/metricsserver test/kubelet test/coredns,$(MODULES))

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
TAGS    ?= $(BUNDLE_TAGS)
LDFLAGS  = -s -w -X main.version=$(VERSION) $(if $(TAGS),$(BUNDLE_LDFLAGS))
# The race detector needs cgo, which go turns off where there is no C compiler. On more than one processor it crashes itself now and then (a failed CHECK
# of ThreadSanitizer, or a fault in it): goroutines of a bubble (testing/synctest) run timers that are due at once each where it is, and all of them in
# the bubble's one context of the detector. Packages run side by side all the same.
RACE    ?= $(if $(filter 1,$(shell go env CGO_ENABLED)),-race -cpu 1)
# One set of flags for all that needs no race detector, that of bin/berth: what is compiled for one serves the others too.
SHARED   = CGO_ENABLED=0 GOFLAGS='$(strip $(shell go env GOFLAGS) -trimpath)'
# Runs go test on packages, with flags, and retries each failed test once, alone: $(RETRY) PACKAGES FLAGS...
RETRY   := $(CURDIR)/test/retry.sh
TOOL    := go tool -modfile=$(CURDIR)/tools/go.mod

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { gsub(/[$$][$$]/, "$$", $$2); printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST) | sort

.PHONY: run
run: need-root ## build everything and run the pods of examples/hello, as root (ONCE=1: end when all are ready; RUN_FLAGS=more flags of berth run)
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory build
	bin/berth run $(if $(ONCE),--once) $(RUN_FLAGS) examples/hello

# Not a position-independent executable (-buildmode=pie). Without cgo that needs the C library's loader on the machine. With cgo it takes 50 ms more to
# start (80 instead of 30) and a C compiler to build, and its relocated pages are written to: they can neither be shared nor given back (cmd/berth/memory.go).
# The same holds for the bundle, but for runc, which is made with cgo.
.PHONY: build
build: $(if $(TAGS),bundle) ## build bin/berth with the runtime inside (TAGS= for one without)
	@echo 'build: bin/berth'
	@$(PROGRESS) build env CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/berth ./cmd/berth

# Tests of many lives of the whole agent, which take minutes with the race detector. `make walk` lives the same lives, and more.
LIVES_TESTS := ^TestWalks$$|AtEachStep$$|^TestDamagedFiles$$
# The rules of this repository have one goroutine, and take a minute with the race detector.
RULES := ^TestRules$$

# LIVES=no leaves out the lives of the whole agent, for whoever runs `make walk` besides. `make lint` vets the tests, and with more checks than go test has.
.PHONY: test
test: ## run every test that needs neither root nor a runtime
	@failed=0; for module in $(CODE); do (cd $$module; echo "go test $(RACE) in $$module"; $(PROGRESS) test $(RETRY) ./... -timeout 8m -vet=off -ldflags=-w $(RACE) -skip '$(LIVES_TESTS)|$(RULES)') || failed=1; done; exit $$failed
	@$(PROGRESS) rules env $(SHARED) $(RETRY) ./test/rules -timeout 8m -vet=off -run '$(RULES)'
	@$(if $(filter no,$(LIVES)),,$(PROGRESS) lives env $(SHARED) $(RETRY) ./agent -timeout 8m -vet=off -run '$(LIVES_TESTS)')

.PHONY: race
race: ## the lives of the whole agent, which `make test` runs without the race detector, with it, one part after the other
	go test -timeout 20m $(RACE) -run '^TestWalks$$' ./agent
	go test -timeout 20m $(RACE) -run 'AtEachStep$$' ./agent
	go test -timeout 20m $(RACE) -run '^TestDamagedFiles$$' ./agent

WALKS ?= 250

.PHONY: walk
walk: ## random steps of pods, runtime, API server and agent in virtual time (WALKS=250 walks of 400), and of who gets devices, CPUs and memory; the agent killed at each of its own, and each of its files damaged
	BERTH_WALKS=$(WALKS) BERTH_WALK_STEPS=400 go test -count 1 -run '^TestWalks$$' -timeout 20m ./agent
	BERTH_STRIKES=all go test -count 1 -run 'AtEachStep$$|^TestDamagedFiles$$' -timeout 20m ./agent
	BERTH_WALKS=$(WALKS) BERTH_WALK_STEPS=400 go test -count 1 -run '^TestWalk$$' -timeout 20m ./internal/resources/containermanager

# How many tests run side by side, of those that can: a test over real containers waits for more than half of its time.
PARALLEL ?= $(shell echo $$((2 * $$(nproc))))

# Programs of containers in tests: test/e2e/podshim/payload.
PAYLOAD  := bin/payload

.PHONY: payload
payload: podshim-needs
	@mkdir -p $(PAYLOAD)
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(PAYLOAD)/payload ./test/e2e/podshim/payload
	@$(PODSHIM_CC) $(PODSHIM_CFLAGS) -o $(PAYLOAD)/before test/e2e/podshim/payload/before/before.c

E2E       = $(SHARED) $(if $(RUN),FORMAT=standard-verbose) BERTH_RUNTIME_HANDLER='$(RUNTIME)' BERTH='$(CURDIR)/bin/berth' CONTROLPLANE='$(CURDIR)/$(CONTROLPLANE)' APISERVER='$(CURDIR)/$(APISERVER)' PAYLOAD='$(CURDIR)/$(PAYLOAD)' $(RETRY)
E2E_FLAGS = -tags e2e,bundle -vet=off -ldflags '-w $(BUNDLE_LDFLAGS)' -count 1 -p 1 -parallel $(PARALLEL) -timeout 60m

.PHONY: e2e
e2e: need-root build controlplane apiserver payload ## run the tests over real containers and a real control plane (as root; RUN=those of this name alone, with what they tell; RUNTIME=handler: pods by that handler of the runtime)
	$(E2E) ./test/e2e/... $(E2E_FLAGS) $(if $(RUN),-v -run '$(RUN)')

# What BASE (a commit) leaves to choose: test/selection says which, and why.
.PHONY: e2e-changed
e2e-changed: need-root build controlplane apiserver payload ## run the chosen tests of e2e: those that always run, and those nearest to what changed since BASE=a commit (as root)
	@set -e; chosen=$$($(SHARED) BASE='$(BASE)' go run ./test/selection); test -n "$$chosen"; \
	failed=0; while read -r package run; do $(PROGRESS) e2e env $(E2E) "$$package" $(E2E_FLAGS) -run "$$run" </dev/null || failed=1; done <<<"$$chosen"; exit $$failed

.PHONY: nightly
nightly: ## run everything that needs no virtual machine, and list each part's verdict and time (as root; hours; NIGHTLY='part part': those alone)
	@test/nightly.sh $(NIGHTLY)

.PHONY: nightly-vm
nightly-vm: ## run everything that needs a virtual machine (as root; many hours without KVM)
	@test/nightly.sh e2e-vm 'e2e-vm BERTH_LSM=selinux' 'e2e-vm BERTH_VM_NUMA=1' e2e-vm-kubeadm

.PHONY: fresh
fresh: need-root ## the commands that README begins with, from nothing in a new Debian with Go, gcc and make (as root; many minutes; CACHES=yes: with this machine's caches)
	CACHES='$(CACHES)' test/fresh.sh

GOLDENS := internal/source/validation/testdata/apiserver

.PHONY: goldens
goldens: controlplane ## ask a real API server what it makes of the manifests in internal/source/validation/testdata/apiserver, and keep it
	@set -e; dir=$$(mktemp -d /tmp/bg.XXXXXX); trap '$(CONTROLPLANE) down --rm --dir "$$dir/plane"; rmdir "$$dir"' EXIT; \
	$(CONTROLPLANE) up --detach --dir "$$dir/plane" $(addprefix --arg kube-apiserver=,$(shell cat $(GOLDENS)/flags)) >/dev/null; \
	KUBECONFIG="$$dir/plane/admin.kubeconfig" go test -tags e2e -count 1 -run '^TestUpdateGoldens$$' ./internal/source/validation

.PHONY: need-root
need-root:
	@[ "$$(id -u)" = 0 ] || { echo 'this makes containers, mounts, cgroups and networks: run it as root' >&2; exit 1; }

.PHONY: bench
bench: need-root build ## how far berth is from what the runtime itself takes (as root, 12 minutes; PEER=another agent; BENCH=flags); see docs/performance.md
	go run ./bench -berth bin/berth $(if $(PEER),-peer '$(PEER)') $(BENCH)

PODS ?= 10000

.PHONY: churn
churn: ## pods by podshims that come and go, and leave nothing (as root; PODS=10000, half an hour)
	@$(MAKE) --no-print-directory e2e RUN='^TestChurn$$' CHURN_PODS='$(PODS)'

.PHONY: benchmarks
benchmarks: ## run the benchmarks of every package that has some
	@packages=$$(grep -rl --include='*_test.go' '^func Benchmark' agent bench cmd internal | xargs -r dirname | sort -u | sed 's|^|./|'); \
	if [ -z "$$packages" ]; then echo 'benchmarks: no package has a benchmark'; exit 0; fi; \
	set -x; go test -run '^$$' -bench . -benchmem $$packages

LINT_TAGS := e2e,vm,kubelet,metricsserver,podshim

# Without cgo, and then with it what is for cgo alone.
.PHONY: lint
lint: ## gofumpt, vet and staticcheck, in every module
	@unformatted=$$($(SHARED) $(TOOL) gofumpt -l .); if [ -n "$$unformatted" ]; then \
		printf 'lint: not as gofumpt has it (make fmt):\n%s\n' "$$unformatted" >&2; exit 1; fi
	@set -e; export $(SHARED); for module in $(CODE); do (set -x; cd $$module; go vet -tags $(LINT_TAGS) ./...; $(TOOL) staticcheck -tags $(LINT_TAGS) ./...); done
	@set -e; for folder in $$(grep -rl --include='*.go' '^//go:build .*\bcgo\b' . | xargs -r dirname | sort -u); do \
		(set -x; cd $$folder; go vet -tags $(LINT_TAGS) .; $(TOOL) staticcheck -tags $(LINT_TAGS) .); done

.PHONY: fmt
fmt: ## format every Go file
	$(TOOL) gofumpt -w .

.PHONY: check
check: lint test ## lint, test, and what is generated or tidied is as it is committed
	@before=$$(git status --porcelain; git diff HEAD); go generate ./...; after=$$(git status --porcelain; git diff HEAD); \
	if [ "$$before" != "$$after" ]; then git status --short; echo 'check: go generate changed files: commit the result' >&2; exit 1; fi
	@set -e; for module in $(MODULES); do (set -x; cd $$module; go mod tidy -diff); done

.PHONY: clean
clean: ## remove what was built in this checkout
	rm -rf bin $(DIST) $(BUNDLE_FILE) $(BUNDLE_HASH) $(API_FILE) $(API_HASH)
