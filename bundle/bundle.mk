# The bundle: the runtime that berth brings along, built from the modules that bundle/go.mod pins. Included by the main Makefile.
#
# A built bundle is kept in BERTH_CACHE under a key made from everything that goes into it, so that a second build, and the first
# build of another checkout, only copy it.
#
# For the rules that build berth:  bundle (prerequisite)  BUNDLE_TAGS  BUNDLE_LDFLAGS

BERTH_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth

# Runs a command that may take long, and says so every 15 seconds: $(PROGRESS) WHAT COMMAND...
PROGRESS := $(CURDIR)/bundle/progress.sh

BUNDLE_TAGS    := bundle
BUNDLE_FILE    := internal/runtime/embedded/bundle/bundle.tar.zst
BUNDLE_HASH    := internal/runtime/embedded/bundle/bundle.hash
# Expanded when a recipe runs, that is, after the bundle is there.
BUNDLE_LDFLAGS  = $(foreach name,bundle api,-X berth/internal/runtime/embedded.$(name)Hash=$(shell cat $(dir $(BUNDLE_HASH))$(name).hash))

BUNDLE_SOURCES := bundle/go.mod bundle/go.sum bundle/bundle.mk bundle/podshim/go.mod bundle/podshim/go.sum bundle/podshim/podshim.mk \
	bundle/source.sh bundle/patch.sh $(sort $(wildcard bundle/patches/*.patch)) \
	$(sort $(filter-out %_test.go %/harness.c,$(wildcard bundle/cmd/*/*.go bundle/cni/*.go bundle/containerd/*/*.go bundle/images/*/*.go bundle/images/*/*.c \
	bundle/podshim/*.go bundle/podshim/*/*.go bundle/podshim/c/*)))
BUNDLE_KEY      = $(shell { go env GOVERSION GOARCH; cat $(BUNDLE_SOURCES); } | sha256sum | cut -c1-16)

BUNDLE_CONTAINERD := github.com/containerd/containerd/v2
BUNDLE_GOCNI      := github.com/containerd/go-cni
BUNDLE_RUNC       := github.com/opencontainers/runc
BUNDLE_CNI        := github.com/containernetworking/plugins
include bundle/podshim/podshim.mk
bundle_version     = $(shell cd bundle && go list -m -f '{{.Version}}' $(1))

# GOARCH=arm64 in the environment makes the bundle of another architecture: with Debian's C compiler for it, and libseccomp of it.
BUNDLE_ARCH    = $(shell go env GOARCH)
BUNDLE_TRIPLET = $(patsubst amd64,x86_64,$(patsubst arm64,aarch64,$(BUNDLE_ARCH)))-linux-gnu
BUNDLE_CROSS   = $(filter-out $(shell go env GOHOSTARCH),$(BUNDLE_ARCH))
# The C library of the podshim: bundle/podshim/README.md says why this one.
BUNDLE_MUSL_CC = $(patsubst %-gnu,%-musl,$(BUNDLE_TRIPLET))-gcc
BUNDLE_CC      = $(if $(BUNDLE_CROSS),export CC=$(BUNDLE_TRIPLET)-gcc PKG_CONFIG_LIBDIR=/usr/lib/$(BUNDLE_TRIPLET)/pkgconfig;)

# Snapshotters, exporters and documentation that Berth does not use; grpcnotrace lets the linker drop unused methods.
BUNDLE_CONTAINERD_TAGS := no_btrfs,no_devmapper,no_zfs,no_tracing,urfave_cli_no_docs,grpcnotrace,netgo,osusergo

.PHONY: bundle
bundle: ## parts: build the embedded runtime (cached in BERTH_CACHE)
	@set -e; key=$(BUNDLE_KEY); kept='$(BERTH_CACHE)'/bundle/$$key; \
	if ! [ -f "$$kept/bundle.hash" ]; then \
		echo 'bundle: the first build downloads what it needs and takes 3 to 10 minutes; it is kept in $(BERTH_CACHE), and later builds take seconds'; \
		$(PROGRESS) bundle $(MAKE) --no-print-directory -f bundle/bundle.mk bundle-build BUNDLE_KEPT="$$kept"; \
	fi; \
	mkdir -p $(dir $(BUNDLE_FILE)); \
	if ! cmp -s "$$kept/bundle.hash" $(BUNDLE_HASH) || ! cmp -s "$$kept/bundle.tar.zst" $(BUNDLE_FILE); then \
		rm -f $(BUNDLE_FILE) $(BUNDLE_HASH); \
		cp "$$kept/bundle.tar.zst" $(BUNDLE_FILE); cp "$$kept/bundle.hash" $(BUNDLE_HASH); \
	fi

.PHONY: bundle-build
bundle-build: bundle-needs
	@set -e; $(BUNDLE_CC) cd bundle; mkdir -p '$(dir $(BUNDLE_KEPT))'; \
	work=$$(mktemp -d '$(BUNDLE_KEPT).XXXXXX'); trap 'rm -rf "$$work"' EXIT; \
	mkdir -p "$$work/bin" "$$work/cni" "$$work/out"; \
	build() { go build -trimpath -buildvcs=false "$$@"; }; \
	echo 'bundle: containerd $(call bundle_version,$(BUNDLE_CONTAINERD)) with podshims, and its shim'; \
	build_containerd() { \
		CGO_ENABLED=0 build -tags $(BUNDLE_CONTAINERD_TAGS) \
			-ldflags '-s -w -X $(BUNDLE_CONTAINERD)/version.Version=$(call bundle_version,$(BUNDLE_CONTAINERD))' "$$@"; \
	}; \
	./source.sh "$$work/source"; \
	(cd "$$work/source"; go mod edit -replace $(BUNDLE_CONTAINERD)=./containerd; build_containerd -o "$$work/bin/" ./cmd/containerd-shim-runc-v2); \
	(cd "$$work/source/podshim"; go mod edit -replace $(BUNDLE_CONTAINERD)=../containerd -replace $(BUNDLE_GOCNI)=../go-cni; \
		build_containerd -tags $(BUNDLE_CONTAINERD_TAGS),daemon -o "$$work/bin/containerd" .; \
		cd c; $(BUNDLE_MUSL_CC) $(PODSHIM_CFLAGS) -o "$$work/bin/podshim" $(notdir $(PODSHIM_SOURCES))); \
	echo 'bundle: runc $(call bundle_version,$(BUNDLE_RUNC))'; \
	CGO_ENABLED=1 build -buildmode=pie -tags seccomp,urfave_cli_no_docs,netgo,osusergo -ldflags '-s -w -linkmode external -extldflags -static-pie' \
		-o "$$work/bin/" $(BUNDLE_RUNC); \
	echo 'bundle: CNI plugins $(call bundle_version,$(BUNDLE_CNI))'; \
	CGO_ENABLED=0 build -ldflags '-s -w -X $(BUNDLE_CNI)/pkg/utils/buildversion.BuildVersion=$(call bundle_version,$(BUNDLE_CNI))' \
		-o "$$work/cni/" $(addprefix $(BUNDLE_CNI)/plugins/,main/bridge main/loopback ipam/host-local meta/portmap meta/bandwidth); \
	CGO_ENABLED=0 build -ldflags '-s -w' -o "$$work/cni/" ./cmd/berth-cni; \
	echo 'bundle: images pause and hello'; \
	CGO_ENABLED=0 build -ldflags '-s -w' -o "$$work/hello" ./images/hello; \
	$${CC:-cc} -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fno-pie -no-pie -Os \
		-Wall -Wextra -Werror -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,noexecstack -s -o "$$work/pause" images/pause/pause.c; \
	linked() { printf '#include <features.h>\n#include <seccomp.h>\n%s\n' "$$1" | $${CC:-cc} -E -P - | tail -n 1 | tr -d ' '; }; \
	GOARCH= CGO_ENABLED=0 go run ./cmd/pack -arch $(BUNDLE_ARCH) -bin "$$work/bin" -cni "$$work/cni" -pause "$$work/pause" -hello "$$work/hello" \
		-component containerd=$(call bundle_version,$(BUNDLE_CONTAINERD)) -component runc=$(call bundle_version,$(BUNDLE_RUNC)) \
		-component cni-plugins=$(call bundle_version,$(BUNDLE_CNI)) \
		-component libseccomp="$$(linked SCMP_VER_MAJOR.SCMP_VER_MINOR.SCMP_VER_MICRO)" -component glibc="$$(linked __GLIBC__.__GLIBC_MINOR__)" \
		-component libgcc="$$($${CC:-cc} -dumpfullversion)" \
		-component musl="$$(dpkg-query -W -f '$${Version}' musl-dev$(if $(BUNDLE_CROSS),:$(BUNDLE_ARCH)) | cut -d- -f1)" \
		-out "$$work/out/bundle.tar.zst" -hash "$$work/out/bundle.hash"; \
	rm -rf '$(BUNDLE_KEPT)'; mv "$$work/out" '$(BUNDLE_KEPT)'

# What a build of the bundle cannot do without, said before it starts.
.PHONY: bundle-needs
bundle-needs:
	@$(BUNDLE_CC) missing=; \
	command -v $${CC:-cc} >/dev/null || missing="$$missing $(if $(BUNDLE_CROSS),gcc-$(subst _,-,$(BUNDLE_TRIPLET)) libc6-dev-$(BUNDLE_ARCH)-cross,gcc libc6-dev)"; \
	command -v pkg-config >/dev/null || missing="$$missing pkg-config"; \
	if command -v pkg-config >/dev/null && ! pkg-config --exists libseccomp; then missing="$$missing libseccomp-dev$(if $(BUNDLE_CROSS),:$(BUNDLE_ARCH))"; fi; \
	command -v zstd >/dev/null || missing="$$missing zstd"; \
	command -v patch >/dev/null || missing="$$missing patch"; \
	command -v $(BUNDLE_MUSL_CC) >/dev/null || missing="$$missing musl-dev$(if $(BUNDLE_CROSS),:$(BUNDLE_ARCH))"; \
	$(if $(BUNDLE_CROSS),if [ -n "$$missing" ]; then \
		echo "bundle: missing Debian packages for $(BUNDLE_ARCH):$$missing (as root: dpkg --add-architecture $(BUNDLE_ARCH) && apt-get update && apt-get install$$missing)" >&2; exit 1; \
	fi;) \
	if [ -n "$$missing" ]; then \
		echo "bundle: missing Debian packages:$$missing (run 'make deps' as root, or: apt-get install$$missing)" >&2; exit 1; \
	fi

# Debian packages: to build the bundle (gcc, libc6-dev, musl-dev, patch, pkg-config, libseccomp-dev, zstd), and to run pods (nftables; iptables will do).
.PHONY: deps
deps: ## daily: install the Debian packages for building and running (as root), or list the missing ones
	@build=; run=; \
	command -v gcc >/dev/null || build="$$build gcc"; \
	[ -f /usr/include/stdio.h ] || build="$$build libc6-dev"; \
	command -v $(BUNDLE_MUSL_CC) >/dev/null || build="$$build musl-dev"; \
	command -v pkg-config >/dev/null || build="$$build pkg-config"; \
	if ! command -v pkg-config >/dev/null || ! pkg-config --exists libseccomp; then build="$$build libseccomp-dev"; fi; \
	command -v zstd >/dev/null || build="$$build zstd"; \
	command -v patch >/dev/null || build="$$build patch"; \
	path="$$PATH:/usr/sbin:/sbin"; \
	if ! PATH="$$path" command -v nft >/dev/null && ! PATH="$$path" command -v iptables >/dev/null; then run="$$run nftables"; fi; \
	PATH="$$path" command -v conntrack >/dev/null || run="$$run conntrack"; \
	if [ -z "$$build$$run" ]; then echo 'deps: everything is there'; exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "deps: installing Debian packages:$$build$$run"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$build $$run >/dev/null && exit 0; \
		echo "deps: the installation failed; see above" >&2; \
	fi; \
	if [ -n "$$build" ]; then echo "deps: missing to build:$$build" >&2; fi; \
	if [ -n "$$run" ]; then echo "deps: missing to run pods:$$run" >&2; fi; \
	echo "deps: as root: apt-get install$$build$$run" >&2; \
	[ -z "$$build" ]
