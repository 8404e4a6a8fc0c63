# `make` prints the targets. Build results that take long are cached outside of the checkout, in Go's caches and in BERTH_CACHE.

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

# Each directory with a go.mod is its own module, which ./... of the root excludes. tools/, test/metricsserver, test/kubelet and test/coredns
# pin the versions of programs and have no code to test.
MODULES := . $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod))
CODE    := $(filter-out tools test/metricsserver test/kubelet test/coredns,$(MODULES))

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
TAGS    ?= $(BUNDLE_TAGS)
LDFLAGS  = -s -w -X main.version=$(VERSION) $(if $(TAGS),$(BUNDLE_LDFLAGS))
# The race detector needs cgo, which go disables without a C compiler. With more than one CPU, it sometimes crashes (a failed CHECK or a fault
# in ThreadSanitizer): the goroutines of a testing/synctest bubble run due timers on their own threads, but share the bubble's one detector
# context. Packages still run in parallel.
RACE    ?= $(if $(filter 1,$(shell go env CGO_ENABLED)),-race -cpu 1)
# Flags of everything that runs without the race detector. They are those of bin/berth, so that compiled packages are shared.
SHARED   = CGO_ENABLED=0 GOFLAGS='$(strip $(shell go env GOFLAGS) -trimpath)'
# $(RETRY) PACKAGES FLAGS... runs go test, and each failed test once more, alone.
RETRY   := $(CURDIR)/test/retry.sh
TOOL    := go tool -modfile=$(CURDIR)/tools/go.mod

# A target's help begins with its group.
define HELP
BEGIN {
	n = split("daily tests root vm clusters parts", order, " ")
	title["daily"] = "Daily"; title["tests"] = "More tests"; title["root"] = "Tests with real containers (as root)"
	title["vm"] = "Tests in a virtual machine (as root)"; title["clusters"] = "Clusters to try (as root)"; title["parts"] = "Programs and packages"
}
/^[a-z0-9-]+:.*## [a-z]+: / {
	target = text = $$0
	sub(/:.*/, "", target); sub(/.*## /, "", text)
	group = text; sub(/:.*/, "", group); sub(/^[a-z]+: /, "", text); gsub(/[$$][$$]/, "$$", text)
	if (!(group in title)) { print "help: " target ": unknown group " group; exit 1 }
	lines[group] = lines[group] sprintf("  make %-14s %s\n", target, text)
}
END { for (i = 1; i <= n; i++) printf "%s%s:\n%s", (i > 1 ? "\n" : ""), title[order[i]], lines[order[i]] }
endef
export HELP

.PHONY: help
help:
	@awk "$$HELP" $(MAKEFILE_LIST)

.PHONY: run
run: need-root ## daily: build everything and run the pods of examples/hello (as root; ONCE=1: exit when all are ready; RUN_FLAGS=flags of berth run)
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory build
	bin/berth run $(if $(ONCE),--once) $(RUN_FLAGS) examples/hello

# berth is not a position-independent executable (-buildmode=pie). Without cgo, one needs the C library's loader on the machine. With cgo, it
# starts 50 ms slower (80 instead of 30), needs a C compiler, and its relocated pages are dirty: they cannot be shared or released
# (cmd/berth/memory.go). The same applies to the programs of the bundle, except runc, which uses cgo.
.PHONY: build
build: $(if $(TAGS),bundle) ## daily: build bin/berth with the embedded runtime (TAGS= without it)
	@echo 'build: bin/berth'
	@$(PROGRESS) build env CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/berth ./cmd/berth

# Restarts and random walks of the whole agent, which take minutes with the race detector. `make walk` runs more of them.
LIVES_TESTS := ^TestWalks$$|AtEachStep$$|^TestDamagedFiles$$
# The rules of this repository use one goroutine, and take a minute with the race detector.
RULES := ^TestRules$$

# LIVES=no omits LIVES_TESTS, if `make walk` runs too. go test does not vet: `make lint` does, with more checks.
.PHONY: test
test: ## daily: run all tests that need neither root nor a runtime
	@failed=0; for module in $(CODE); do (cd $$module; echo "go test $(RACE) in $$module"; $(PROGRESS) test $(RETRY) ./... -timeout 8m -vet=off -ldflags=-w $(RACE) -skip '$(LIVES_TESTS)|$(RULES)') || failed=1; done; exit $$failed
	@$(PROGRESS) rules env $(SHARED) $(RETRY) ./test/rules -timeout 8m -vet=off -run '$(RULES)'
	@$(if $(filter no,$(LIVES)),,$(PROGRESS) lives env $(SHARED) $(RETRY) ./agent -timeout 8m -vet=off -run '$(LIVES_TESTS)')

.PHONY: race
race: ## tests: run the whole-agent tests under the race detector
	go test -timeout 20m $(RACE) -run '^TestWalks$$' ./agent
	go test -timeout 20m $(RACE) -run 'AtEachStep$$' ./agent
	go test -timeout 20m $(RACE) -run '^TestDamagedFiles$$' ./agent

WALKS ?= 250

.PHONY: walk
walk: ## tests: run random walks, restarts at each step and file damage in virtual time (WALKS=250)
	BERTH_WALKS=$(WALKS) BERTH_WALK_STEPS=400 go test -count 1 -run '^TestWalks$$' -timeout 20m ./agent
	BERTH_STRIKES=all go test -count 1 -run 'AtEachStep$$|^TestDamagedFiles$$' -timeout 20m ./agent
	BERTH_WALKS=$(WALKS) BERTH_WALK_STEPS=400 go test -count 1 -run '^TestWalk$$' -timeout 20m ./internal/resources/containermanager

# Number of parallel tests: a test with real containers waits for more than half of its time.
PARALLEL ?= $(shell echo $$((2 * $$(nproc))))

# Programs of the containers in tests: test/e2e/podshim/payload.
PAYLOAD  := bin/payload

.PHONY: payload
payload: podshim-needs
	@mkdir -p $(PAYLOAD)
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(PAYLOAD)/payload ./test/e2e/podshim/payload
	@$(PODSHIM_CC) $(PODSHIM_CFLAGS) -o $(PAYLOAD)/before test/e2e/podshim/payload/before/before.c

E2E       = $(SHARED) $(if $(RUN),FORMAT=standard-verbose) BERTH_RUNTIME_HANDLER='$(RUNTIME)' BERTH='$(CURDIR)/bin/berth' CONTROLPLANE='$(CURDIR)/$(CONTROLPLANE)' APISERVER='$(CURDIR)/$(APISERVER)' PAYLOAD='$(CURDIR)/$(PAYLOAD)' $(RETRY)
E2E_FLAGS = -tags e2e,bundle -vet=off -ldflags '-w $(BUNDLE_LDFLAGS)' -count 1 -p 1 -parallel $(PARALLEL) -timeout 60m

.PHONY: e2e
e2e: need-root build controlplane apiserver payload ## root: run the tests with real containers and a real control plane (RUN=name, verbose; RUNTIME=runtime handler)
	$(E2E) ./test/e2e/... $(E2E_FLAGS) $(if $(RUN),-v -run '$(RUN)')

# test/selection selects the tests, and explains how.
.PHONY: e2e-changed
e2e-changed: need-root build controlplane apiserver payload ## root: run the e2e tests selected for the changes since BASE=commit
	@set -e; chosen=$$($(SHARED) BASE='$(BASE)' go run ./test/selection); test -n "$$chosen"; \
	failed=0; while read -r package run; do $(PROGRESS) e2e env $(E2E) "$$package" $(E2E_FLAGS) -run "$$run" </dev/null || failed=1; done <<<"$$chosen"; exit $$failed

.PHONY: nightly
nightly: ## root: run everything that needs no virtual machine and list verdicts and times (hours; NIGHTLY="part part")
	@test/nightly.sh $(NIGHTLY)

.PHONY: nightly-vm
nightly-vm: ## vm: run everything that needs a virtual machine (many hours without KVM)
	@test/nightly.sh e2e-vm 'e2e-vm BERTH_LSM=selinux' 'e2e-vm BERTH_VM_NUMA=1' e2e-vm-kubeadm

.PHONY: fresh
fresh: need-root ## root: run the first commands of README.md in a new Debian (many minutes; CACHES=yes: with the caches of this machine)
	CACHES='$(CACHES)' test/fresh.sh

GOLDENS := internal/source/validation/testdata/apiserver

.PHONY: goldens
goldens: controlplane ## tests: update internal/source/validation/testdata/apiserver from a real kube-apiserver
	@set -e; dir=$$(mktemp -d /tmp/bg.XXXXXX); trap '$(CONTROLPLANE) down --rm --dir "$$dir/plane"; rmdir "$$dir"' EXIT; \
	$(CONTROLPLANE) up --detach --dir "$$dir/plane" $(addprefix --arg kube-apiserver=,$(shell cat $(GOLDENS)/flags)) >/dev/null; \
	KUBECONFIG="$$dir/plane/admin.kubeconfig" go test -tags e2e -count 1 -run '^TestUpdateGoldens$$' ./internal/source/validation

.PHONY: need-root
need-root:
	@[ "$$(id -u)" = 0 ] || { echo 'this target creates containers, mounts, cgroups and networks: run it as root' >&2; exit 1; }

.PHONY: bench
bench: need-root build ## root: compare Berth with the runtime alone (12 minutes; PEER=another agent; BENCH=flags; see docs/performance.md)
	go run ./bench -berth bin/berth $(if $(PEER),-peer '$(PEER)') $(BENCH)

PODS ?= 10000

.PHONY: churn
churn: ## root: create and delete many pods of the podshim and verify that nothing is left (PODS=10000, half an hour)
	@$(MAKE) --no-print-directory e2e RUN='^TestChurn$$' CHURN_PODS='$(PODS)'

.PHONY: benchmarks
benchmarks: ## tests: run the Go benchmarks of all packages
	@packages=$$(grep -rl --include='*_test.go' '^func Benchmark' agent bench cmd internal | xargs -r dirname | sort -u | sed 's|^|./|'); \
	if [ -z "$$packages" ]; then echo 'benchmarks: no package has benchmarks'; exit 0; fi; \
	set -x; go test -run '^$$' -bench . -benchmem $$packages

LINT_TAGS := e2e,vm,kubelet,metricsserver,podshim

# First without cgo, then the packages with cgo files again.
.PHONY: lint
lint: ## daily: run gofumpt, vet and staticcheck in every module, and clang-format
	@$(call CLANG_FORMAT,lint,--dry-run -Werror)
	@unformatted=$$($(SHARED) $(TOOL) gofumpt -l .); if [ -n "$$unformatted" ]; then \
		printf 'lint: not formatted by gofumpt (run make fmt):\n%s\n' "$$unformatted" >&2; exit 1; fi
	@set -e; export $(SHARED); for module in $(CODE); do (set -x; cd $$module; go vet -tags $(LINT_TAGS) ./...; $(TOOL) staticcheck -tags $(LINT_TAGS) ./...); done
	@set -e; for folder in $$(grep -rl --include='*.go' '^//go:build .*\bcgo\b' . | xargs -r dirname | sort -u); do \
		(set -x; cd $$folder; go vet -tags $(LINT_TAGS) .; $(TOOL) staticcheck -tags $(LINT_TAGS) .); done

.PHONY: fmt
fmt: ## daily: format all Go files and the C of the pod shim
	$(TOOL) gofumpt -w .
	@$(call CLANG_FORMAT,fmt,-i)

.PHONY: check
check: lint test ## daily: run lint and test, and verify that generated files and go.mod files are current
	@before=$$(git status --porcelain; git diff HEAD); go generate ./...; after=$$(git status --porcelain; git diff HEAD); \
	if [ "$$before" != "$$after" ]; then git status --short; echo 'check: go generate changed files: commit them' >&2; exit 1; fi
	@set -e; for module in $(MODULES); do (set -x; cd $$module; go mod tidy -diff); done

.PHONY: clean
clean: ## daily: remove build output of this checkout
	rm -rf bin $(DIST) $(BUNDLE_FILE) $(BUNDLE_HASH) $(API_FILE) $(API_HASH)
