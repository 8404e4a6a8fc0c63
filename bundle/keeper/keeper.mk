# Keepers in place of containerd's shims (ADR 13): containerd with a sandbox controller of our own, and the program that holds a pod. The
# bundle has both; these targets build them for their own tests. Included by the main Makefile and by bundle.mk.
#
# The tag daemon keeps what imports all of containerd from `make lint` and `make test`.
#
# For the rules that need it:  keeper (prerequisite)  KEEPER (the folder of the two programs)

KEEPER         := bin/keeper
# musl: see bundle/keeper/README.md, "The C library".
KEEPER_CC      ?= $(BUNDLE_MUSL_CC)
KEEPER_CFLAGS  := -std=gnu11 -static -Os -Wall -Wextra -Werror -s
KEEPER_SOURCES := $(addprefix c/,keeper.c log.c plan.c first.c)
KEEPER_BUILD    = CGO_ENABLED=0 go build -trimpath -buildvcs=false \
	-ldflags '-s -w -X $(BUNDLE_CONTAINERD)/version.Version=$(shell cd bundle/keeper && go list -m -f '{{.Version}}' $(BUNDLE_CONTAINERD))'

.PHONY: keeper
keeper: keeper-needs ## build bin/keeper: containerd with keepers in place of shims, and the keeper, for their tests
	@mkdir -p $(KEEPER)
	@echo 'keeper: $(KEEPER)/keeper'
	@cd bundle/keeper && $(KEEPER_CC) $(KEEPER_CFLAGS) -o '$(CURDIR)/$(KEEPER)/keeper' $(KEEPER_SOURCES)
	@echo 'keeper: $(KEEPER)/keeper-containerd'
	@cd bundle/keeper && $(PROGRESS) keeper env $(KEEPER_BUILD) -tags $(BUNDLE_CONTAINERD_TAGS),daemon -o '$(CURDIR)/$(KEEPER)/keeper-containerd' .

# The same containerd, which ends itself at a step that KEEPER_POINT names: for its tests alone.
.PHONY: keeper-points
keeper-points: keeper
	@mkdir -p $(KEEPER)/points && ln -sf ../keeper $(KEEPER)/points/keeper
	@cd bundle/keeper && $(PROGRESS) keeper env $(KEEPER_BUILD) -tags $(BUNDLE_CONTAINERD_TAGS),daemon,keeperpoints -o '$(CURDIR)/$(KEEPER)/points/keeper-containerd' .
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(KEEPER)/points/payload ./test/e2e/keeper/payload
	@$(KEEPER_CC) $(KEEPER_CFLAGS) -o $(KEEPER)/points/before test/e2e/keeper/payload/before/before.c
	@test "$$(go env GOARCH)" != amd64 || CGO_ENABLED=0 GOARCH=386 go build -trimpath -ldflags '-s -w' -o $(KEEPER)/points/payload386 ./test/e2e/keeper/payload

# Both as a release to come has them, with the next version of the messages: for the test of an upgrade alone.
.PHONY: keeper-next
keeper-next: keeper
	@mkdir -p $(KEEPER)/next/c && cp bundle/keeper/c/*.[ch] $(KEEPER)/next/c/
	@sed -i 's/^enum { VERSION = \([0-9]*\),/enum { VERSION = \1 + 1,/' $(KEEPER)/next/c/keeper.h
	@cd $(KEEPER)/next && $(KEEPER_CC) $(KEEPER_CFLAGS) -o keeper $(KEEPER_SOURCES)
	@cd bundle/keeper && $(PROGRESS) keeper env $(KEEPER_BUILD) -tags $(BUNDLE_CONTAINERD_TAGS),daemon,keepernext -o '$(CURDIR)/$(KEEPER)/next/keeper-containerd' .

# The stock shim and runc, with which keepers are compared.
.PHONY: keeper-stock
keeper-stock: bundle
	@mkdir -p $(KEEPER)/stock
	@tar --zstd -xf $(BUNDLE_FILE) -C $(KEEPER)/stock --strip-components 1 bin/runc bin/containerd-shim-runc-v2

.PHONY: keeper-needs
keeper-needs:
	@command -v $(KEEPER_CC) >/dev/null || { echo "keeper: missing Debian package: musl-dev (as root: apt-get install musl-dev)" >&2; exit 1; }

# How often containerd is killed at a random moment.
KEEPER_KILLS ?= 5

.PHONY: e2e-keeper
e2e-keeper: need-root keeper-points keeper-next keeper-stock ## pods by keepers, and containerd killed under them (as root; KEEPER_KILLS=5, KEEPER_SEED=number)
	KEEPER='$(CURDIR)/$(KEEPER)' KEEPER_KILLS='$(KEEPER_KILLS)' KEEPER_SEED='$(KEEPER_SEED)' go test -tags e2e,keeper -count 1 -timeout 30m $(if $(RUN),-v -run '$(RUN)') ./test/e2e/keeper

# The same in the virtual machine of e2e-vm, with cgroups of version 2 and systemd.
KEEPER_VM_RUN = $(or $(RUN),AsWithStockShims|TestOutOfMemory|TestFrozenDisk|TestPause|TestAPod|TestUpgrade|TestInside|TestKilledAtEachStep)

.PHONY: e2e-vm-keeper
e2e-vm-keeper: vm-image keeper-points keeper-next keeper-stock ## keepers in a virtual machine with cgroup v2 and systemd (as root; RUN='TestPause'; VM_SECONDS=2400; logs in VM_LOGS=bin/vm)
	@CGO_ENABLED=0 go test -c -tags e2e,keeper -ldflags '-s -w' -o bin/keeper.test ./test/e2e/keeper
	@tar -chf bin/keeper.tar -C '$(KEEPER)' .
	@test/vm/run.sh '$(VM_IMAGE)' '$(VM_LOGS)' '$(VM_SECONDS)' '$(KEEPER_VM_RUN)' - bin/keeper.test bin/keeper.tar

KEEPER_FUZZ ?= 1m

# The last two make a thousand inputs of each that Go has for them.
.PHONY: keeper-fuzz
keeper-fuzz: ## the keeper with malformed plans, messages and output, under sanitizers of addresses and undefined behaviour (KEEPER_FUZZ=1m)
	cd bundle/keeper && go test -run '^$$' -fuzz '^FuzzPlan$$' -fuzztime $(KEEPER_FUZZ) ./ctest
	cd bundle/keeper && go test -run '^$$' -fuzz '^FuzzExec$$' -fuzztime $(KEEPER_FUZZ) ./ctest
	cd bundle/keeper && go test -run '^$$' -fuzz '^FuzzMessages$$' -fuzztime $(KEEPER_FUZZ) ./ctest
	cd bundle/keeper && go test -run '^$$' -fuzz '^FuzzLog$$' -fuzztime $(KEEPER_FUZZ) ./ctest
	cd bundle/keeper && go test -run '^$$' -fuzz '^FuzzManyPlans$$' -fuzztime $(KEEPER_FUZZ) ./ctest
	cd bundle/keeper && go test -run '^$$' -fuzz '^FuzzManyMessages$$' -fuzztime $(KEEPER_FUZZ) ./ctest
