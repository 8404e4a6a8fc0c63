# A virtual machine for the tests over what many hosts lack: cgroup v2 with every controller, systemd as init, pressure readings, swap,
# AppArmor, a machine that can be rebooted. Included by the main Makefile.
#
# The image of its disk is kept in BERTH_CACHE under a key made from what goes into it; each run gets a copy that it may write, and leaves
# nothing. QEMU emulates the processors: no access to KVM is needed, and what computes takes about ten times as long as on the host.

BERTH_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth

VM_SOURCES := test/vm/image.sh
VM_KEY      = $(shell cat $(VM_SOURCES) | sha256sum | cut -c1-16)
VM_IMAGE    = $(BERTH_CACHE)/vm/$(VM_KEY)

# Which tests (as go test -run), for how many seconds at most, and where logs go: the journal, the console, the tests' output. Those of SELinux need a
# machine that was started with it, in place of AppArmor; those of NUMA nodes one that has some.
VM_RUN      = $(or $(RUN),$(if $(filter selinux,$(BERTH_LSM)),^TestSELinux,$(if $(BERTH_VM_NUMA),^TestNUMA,^TestVM)))
VM_SECONDS ?= 2400
VM_LOGS    ?= bin/vm

.PHONY: vm-deps
vm-deps: ## vm: install QEMU, debootstrap and e2fsprogs from Debian
	@missing=; path="$$PATH:/usr/sbin:/sbin"; \
	for pair in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap mke2fs:e2fsprogs; do \
		PATH="$$path" command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "vm-deps: as root: apt-get install$$missing" >&2; exit 1; fi; \
	echo "vm-deps: installing Debian packages:$$missing"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null

.PHONY: vm-image
vm-image: need-root vm-deps
	@test/vm/image.sh '$(VM_IMAGE)'

# Packages are made for those tests alone that install them.
VM_PACKAGES = $(if $(filter ^TestVM,$(VM_RUN))$(findstring Package,$(VM_RUN)),packages)

.PHONY: e2e-vm
e2e-vm: vm-image build controlplane $(VM_PACKAGES) ## vm: run tests with cgroup v2 and systemd (RUN='^TestVM'; BERTH_LSM=selinux; BERTH_VM_NUMA=1; VM_SECONDS=2400; VM_LOGS=bin/vm)
	@go test -c -tags e2e,bundle,vm -ldflags '-s -w $(BUNDLE_LDFLAGS)' -o bin/e2e.test ./test/e2e
	@$(if $(VM_PACKAGES),BERTH_PACKAGES=$(DIST)) test/vm/run.sh '$(VM_IMAGE)' '$(VM_LOGS)' '$(VM_SECONDS)' '$(VM_RUN)' bin/berth bin/e2e.test '$(CONTROLPLANE)'
