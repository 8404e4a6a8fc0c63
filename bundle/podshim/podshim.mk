# Pod shims in place of containerd's shims (ADR 13): containerd with its own sandbox controller, and the program that holds a pod. The bundle
# contains both; these targets build them for their own tests. Included by the main Makefile and by bundle.mk.
#
# The tag daemon excludes the package that imports all of containerd from `make lint` and `make test`.
#
# For the rules that need it:  podshim (prerequisite)  PODSHIM (the directory of the two programs)

PODSHIM         := bin/podshim
# musl: see bundle/podshim/README.md, "The C library".
PODSHIM_CC      ?= $(BUNDLE_MUSL_CC)
PODSHIM_CFLAGS  := -std=gnu11 -static -Os -Wall -Wextra -Werror -s
PODSHIM_SOURCES := $(addprefix c/,podshim.c log.c plan.c child.c)
# Runs clang-format on the C code, if the version that .clang-format is for is installed: $(call CLANG_FORMAT,TARGET,FLAGS)
CLANG_FORMAT     = if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then (set -x; clang-format $(2) bundle/podshim/c/*.[ch]); \
	else echo '$(1): clang-format 14 is not installed: skipping the C code of bundle/podshim'; fi
PODSHIM_BUILD    = CGO_ENABLED=0 go build -trimpath -buildvcs=false \
	-ldflags '-s -w -X $(BUNDLE_CONTAINERD)/version.Version=$(shell cd bundle/podshim && go list -m -f '{{.Version}}' $(BUNDLE_CONTAINERD))'

.PHONY: podshim
podshim: podshim-needs ## parts: build bin/podshim: containerd with podshims, and the podshim, for their tests
	@mkdir -p $(PODSHIM)
	@echo 'podshim: $(PODSHIM)/podshim'
	@cd bundle/podshim && $(PODSHIM_CC) $(PODSHIM_CFLAGS) -o '$(CURDIR)/$(PODSHIM)/podshim' $(PODSHIM_SOURCES)
	@echo 'podshim: $(PODSHIM)/podshim-containerd'
	@cd bundle/podshim && $(PROGRESS) podshim env $(PODSHIM_BUILD) -tags $(BUNDLE_CONTAINERD_TAGS),daemon -o '$(CURDIR)/$(PODSHIM)/podshim-containerd' .

# The same containerd with crash points, of which PODSHIM_POINT selects one: only for tests.
.PHONY: podshim-points
podshim-points: podshim
	@mkdir -p $(PODSHIM)/points && ln -sf ../podshim $(PODSHIM)/points/podshim
	@cd bundle/podshim && $(PROGRESS) podshim env $(PODSHIM_BUILD) -tags $(BUNDLE_CONTAINERD_TAGS),daemon,podshimpoints -o '$(CURDIR)/$(PODSHIM)/points/podshim-containerd' .
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(PODSHIM)/points/payload ./test/e2e/podshim/payload
	@$(PODSHIM_CC) $(PODSHIM_CFLAGS) -o $(PODSHIM)/points/before test/e2e/podshim/payload/before/before.c
	@test "$$(go env GOARCH)" != amd64 || CGO_ENABLED=0 GOARCH=386 go build -trimpath -ldflags '-s -w' -o $(PODSHIM)/points/payload386 ./test/e2e/podshim/payload

# Both with the next version of the messages: only for the upgrade test.
.PHONY: podshim-next
podshim-next: podshim
	@mkdir -p $(PODSHIM)/next/c && cp bundle/podshim/c/*.[ch] $(PODSHIM)/next/c/
	@sed -i 's/^enum { VERSION = \([0-9]*\),/enum { VERSION = \1 + 1,/' $(PODSHIM)/next/c/podshim.h
	@cd $(PODSHIM)/next && $(PODSHIM_CC) $(PODSHIM_CFLAGS) -o podshim $(PODSHIM_SOURCES)
	@cd bundle/podshim && $(PROGRESS) podshim env $(PODSHIM_BUILD) -tags $(BUNDLE_CONTAINERD_TAGS),daemon,podshimnext -o '$(CURDIR)/$(PODSHIM)/next/podshim-containerd' .

# The stock shim and runc, with which pod shims are compared.
.PHONY: podshim-stock
podshim-stock: bundle
	@mkdir -p $(PODSHIM)/stock
	@tar --zstd -xf $(BUNDLE_FILE) -C $(PODSHIM)/stock --strip-components 1 bin/runc bin/containerd-shim-runc-v2

.PHONY: podshim-needs
podshim-needs:
	@command -v $(PODSHIM_CC) >/dev/null || { echo "podshim: missing Debian package: musl-dev (as root: apt-get install musl-dev)" >&2; exit 1; }

# How many times containerd is killed at a random moment.
PODSHIM_KILLS ?= 5

.PHONY: e2e-podshim
e2e-podshim: need-root podshim-points podshim-next podshim-stock ## root: test pods of the podshim, and kill containerd under them (PODSHIM_KILLS=5, PODSHIM_SEED=number)
	PODSHIM='$(CURDIR)/$(PODSHIM)' PODSHIM_KILLS='$(PODSHIM_KILLS)' PODSHIM_SEED='$(PODSHIM_SEED)' go test -tags e2e,podshim -count 1 -timeout 30m $(if $(RUN),-v -run '$(RUN)') ./test/e2e/podshim

# The same in the virtual machine of e2e-vm, with cgroup v2 and systemd.
PODSHIM_VM_RUN = $(or $(RUN),AsWithStockShims|TestOutOfMemory|TestFrozenDisk|TestPause|TestAPod|TestUpgrade|TestInside|TestKilledAtEachStep)

.PHONY: e2e-vm-podshim
e2e-vm-podshim: vm-image podshim-points podshim-next podshim-stock ## vm: test the podshim with cgroup v2 and systemd (RUN='TestPause'; VM_SECONDS=2400; VM_LOGS=bin/vm)
	@CGO_ENABLED=0 go test -c -tags e2e,podshim -ldflags '-s -w' -o bin/podshim.test ./test/e2e/podshim
	@tar -chf bin/podshim.tar -C '$(PODSHIM)' .
	@test/vm/run.sh '$(VM_IMAGE)' '$(VM_LOGS)' '$(VM_SECONDS)' '$(PODSHIM_VM_RUN)' - bin/podshim.test bin/podshim.tar

PODSHIM_FUZZ ?= 1m

# The last two create a thousand inputs from each input of Go.
.PHONY: podshim-fuzz
podshim-fuzz: ## tests: fuzz the podshim's C code under the address and undefined-behaviour sanitizers (PODSHIM_FUZZ=1m)
	cd bundle/podshim && go test -run '^$$' -fuzz '^FuzzPlan$$' -fuzztime $(PODSHIM_FUZZ) ./ctest
	cd bundle/podshim && go test -run '^$$' -fuzz '^FuzzExec$$' -fuzztime $(PODSHIM_FUZZ) ./ctest
	cd bundle/podshim && go test -run '^$$' -fuzz '^FuzzMessages$$' -fuzztime $(PODSHIM_FUZZ) ./ctest
	cd bundle/podshim && go test -run '^$$' -fuzz '^FuzzLog$$' -fuzztime $(PODSHIM_FUZZ) ./ctest
	cd bundle/podshim && go test -run '^$$' -fuzz '^FuzzManyPlans$$' -fuzztime $(PODSHIM_FUZZ) ./ctest
	cd bundle/podshim && go test -run '^$$' -fuzz '^FuzzManyMessages$$' -fuzztime $(PODSHIM_FUZZ) ./ctest
