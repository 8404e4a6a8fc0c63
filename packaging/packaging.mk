# Packages to install: .deb and .rpm (nfpm, by packaging/nfpm*.yaml), an archive, checksums, and what they say of their content
# (packaging/main.go). Included by the main Makefile.
#
# The same commit makes the same bytes, wherever it is built: times are those of the commit.

# ARCH="amd64 arm64" makes both. For another architecture than the machine's, Debian's C compiler and libseccomp of that one are needed:
# bundle.mk says how to get them.
ARCH ?= $(shell go env GOHOSTARCH)
DIST := dist

# The time of the commit, in seconds; to the tools that put a time into what they make, SOURCE_DATE_EPOCH.
PACKAGE_EPOCH = $(shell git log -1 --format=%ct)
package package-stage: export SOURCE_DATE_EPOCH = $(PACKAGE_EPOCH)

# A tag v1.2.0-rc.1 makes 1.2.0~rc.1, which is older than 1.2.0. A commit after a tag makes 1.2.0+git and its time, so that each is newer than those before it.
PACKAGE_TAG     = $(shell git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null)
PACKAGE_LAST    = $(shell git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || echo v0.0.0)
PACKAGE_COMMIT  = $(shell date -u -d @$(PACKAGE_EPOCH) +%Y%m%d%H%M%S).$(shell git rev-parse --short=10 HEAD)
PACKAGE_VERSION = $(patsubst v%,%,$(subst -,~,$(or $(PACKAGE_TAG),$(PACKAGE_LAST)+git$(PACKAGE_COMMIT))))$(if $(shell git status --porcelain),.dirty)
PACKAGE_NAME    = berth-$(PACKAGE_VERSION)-linux-$(PACKAGE_ARCH)

NFPM := env -u GOARCH go tool -modfile=$(CURDIR)/packaging/go.mod nfpm

.PHONY: packages
packages: ## parts: build .deb, .rpm, archive, checksums and bill of materials in dist/ (ARCH="amd64 arm64")
	@set -e; rm -rf $(DIST); mkdir -p $(DIST); version='$(PACKAGE_VERSION)'; \
	for arch in $(ARCH); do \
		GOARCH=$$arch $(MAKE) --no-print-directory package-stage PACKAGE_ARCH=$$arch PACKAGE_VERSION="$$version"; \
		$(MAKE) --no-print-directory package PACKAGE_ARCH=$$arch PACKAGE_VERSION="$$version"; \
	done; \
	(cd $(DIST) && sha256sum -- * >SHA256SUMS && ls -sh1)

# Everything that packages hold and that is made, for one architecture after the other.
STAGE := bin/package

.PHONY: package-stage
package-stage: bundle
	@set -e; rm -rf $(STAGE); mkdir -p $(STAGE)/man $(STAGE)/completions; \
	echo 'packages: berth $(PACKAGE_VERSION) for $(PACKAGE_ARCH)'; \
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags $(BUNDLE_TAGS) -ldflags '-s -w -X main.version=$(VERSION) $(BUNDLE_LDFLAGS)' -o $(STAGE)/berth ./cmd/berth; \
	echo 'packages: man pages and completions'; \
	GOARCH= BERTH_PAGES='$(CURDIR)/$(STAGE)' go test -count 1 -run '^TestPages$$' -ldflags '-X berth/cmd/berth.version=$(VERSION)' ./cmd/berth >/dev/null; \
	gzip -9n $(STAGE)/man/*; \
	echo 'packages: bill of materials and licences'; \
	for module in . bundle bundle/apiserver; do (cd $$module && GOARCH= go mod download); done; \
	(cd packaging && GOARCH= go run . -berth '$(CURDIR)/$(STAGE)/berth' -bundle '$(CURDIR)/$(BUNDLE_FILE)' -bundle '$(CURDIR)/$(API_FILE)' -version '$(PACKAGE_VERSION)' -arch $(PACKAGE_ARCH) -out '$(CURDIR)/$(STAGE)'); \
	for unit in berth kubelet; do sed -e '1d' -e 's|/usr/local/bin/|/usr/bin/|' docs/$$unit.service >$(STAGE)/$$unit.service; done

# The packages and the archive of what package-stage has made.
.PHONY: package
package:
	@set -e; export ARCH=$(PACKAGE_ARCH) PACKAGE_VERSION='$(PACKAGE_VERSION)' KUBERNETES_VERSION='$(PACKAGE_KUBERNETES)'; \
	for config in nfpm nfpm-kubelet; do for kind in deb rpm; do \
		$(NFPM) package -f packaging/$$config.yaml -p $$kind -t $(DIST); \
	done; done; \
	cp $(STAGE)/sbom.spdx.json $(DIST)/$(PACKAGE_NAME).spdx.json; \
	top=$$(mktemp -d); trap 'rm -rf "$$top"' EXIT; into="$$top/$(PACKAGE_NAME)"; mkdir "$$into"; \
	cp -r $(STAGE)/berth $(STAGE)/man $(STAGE)/completions $(STAGE)/sbom.spdx.json $(STAGE)/third-party-licences.txt \
		docs examples LICENSE README.md SCOPE.md CHANGELOG.md "$$into/"; \
	chmod -R u=rwX,go=rX "$$into"; \
	tar -C "$$top" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$(PACKAGE_EPOCH) -cf - $(PACKAGE_NAME) | gzip -n >$(DIST)/$(PACKAGE_NAME).tar.gz

# The version of Kubernetes that the agent offers, which is that of the kubelet that the package stands for.
PACKAGE_KUBERNETES = $(shell sed -n 's/^const KubernetesVersion = "v\(.*\)"$$/\1/p' internal/config/version.go)

.PHONY: e2e-packages
e2e-packages: need-root packages ## root: verify the output of make packages: reproducibility, installation with dpkg and rpm, other architectures
	@packaging/prove.sh $(DIST) '$(ARCH)'
