# The child of an agent that judges what is written to its local API: kube-apiserver's registries (ADR 12), and kubectl, in one program, built
# from the modules that bundle/registry/go.mod pins. Included by the main Makefile.
#
# In berth it is an archive of its own beside the runtime's, as most machines need it late or never, and it has 97 MB. As one archive both
# would be 0.6 MB smaller.
#
# The first build takes minutes, so what is built is kept in BERTH_CACHE under a key made from everything that goes into it: it is paid
# for once per machine.
#
# The tag registry keeps what imports k8s.io/kubernetes from `make lint` and `make test`, which would compile all of it once more.
#
# For the rules that need it:  registry (prerequisite)  REGISTRY (the program)  REGISTRY_DOCUMENTS (what it says of itself: discovery and OpenAPI)
# For the rules that build berth:  bundle (prerequisite) makes the archive and brings the documents, too; the archive's hash is in BUNDLE_LDFLAGS

BERTH_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth

REGISTRY           := bin/registry
REGISTRY_DOCUMENTS := bin/registry.documents

# What is shared with the agent is among the sources.
REGISTRY_SOURCES := $(addprefix bundle/registry/,go.mod go.sum registry.mk) go.mod go.sum \
	$(sort $(filter-out %_test.go,$(wildcard bundle/registry/*.go bundle/registry/*/*.go internal/localapi/loopback/*.go internal/localapi/kinds/*.go internal/localapi/registry/*.go internal/localapi/store/*.go)))
REGISTRY_KEY      = $(shell { go env GOVERSION GOARCH; cat $(REGISTRY_SOURCES); } | sha256sum | cut -c1-16)

# What clients are told at /version; the program would know only v0.0.0.
REGISTRY_VERSION  = $(shell cd bundle/registry && go list -m -f '{{.Version}}' k8s.io/kubernetes)
REGISTRY_LDFLAGS  = -s -w $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version, \
	-X $(package).gitVersion=$(REGISTRY_VERSION) \
	-X $(package).gitMajor=$(subst v,,$(word 1,$(subst ., ,$(REGISTRY_VERSION)))) \
	-X $(package).gitMinor=$(word 2,$(subst ., ,$(REGISTRY_VERSION))))

REGISTRY_KEPT     = $(BERTH_CACHE)/registry/$(REGISTRY_KEY)

.PHONY: registry
registry: registry-kept ## build bin/registry, which judges what is written to the local API and is kubectl, too, and its documents (kept in BERTH_CACHE)
	@mkdir -p $(dir $(REGISTRY)); ln -sfT '$(REGISTRY_KEPT)/registry' $(REGISTRY); ln -sfT '$(REGISTRY_KEPT)/documents' $(REGISTRY_DOCUMENTS)

.PHONY: registry-kept
registry-kept:
	@set -e; kept='$(REGISTRY_KEPT)'; [ -f "$$kept/documents" ] || $(MAKE) --no-print-directory registry-build REGISTRY_KEPT="$$kept"

.PHONY: registry-build
registry-build:
	@set -e; cd bundle/registry; mkdir -p '$(dir $(REGISTRY_KEPT))'; \
	work=$$(mktemp -d '$(REGISTRY_KEPT).XXXXXX'); trap 'rm -rf "$$work"' EXIT; \
	echo 'registry: of Kubernetes $(REGISTRY_VERSION) (the first build takes some minutes)'; \
	$(PROGRESS) registry env CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags registry -ldflags '$(REGISTRY_LDFLAGS)' -o "$$work/registry" .; \
	native=$$(env GOARCH= go env GOARCH); program="$$work/registry"; \
	if [ "$$(go env GOARCH)" != "$$native" ]; then \
		program="$$work/native"; env GOARCH= CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags registry -ldflags '$(REGISTRY_LDFLAGS)' -o "$$program" .; \
	fi; \
	"$$program" documents "$$work/documents"; rm -f "$$work/native"; \
	chmod 755 "$$work"; rm -rf '$(REGISTRY_KEPT)'; mv -T "$$work" '$(REGISTRY_KEPT)'

API_FILE := internal/runtime/embedded/bundle/api.tar.zst
API_HASH := internal/runtime/embedded/bundle/api.hash
API_DOCUMENTS := internal/runtime/embedded/bundle/api.documents
API_KEY   = $(shell { echo $(REGISTRY_KEY); cat bundle/cmd/pack/*.go; } | sha256sum | cut -c1-16)

bundle: api

.PHONY: api
api: registry-kept
	@set -e; kept='$(BERTH_CACHE)'/api/$(API_KEY); \
	[ -f "$$kept/api.hash" ] || $(MAKE) --no-print-directory api-build API_KEPT="$$kept"; \
	mkdir -p $(dir $(API_FILE)); \
	if ! cmp -s "$$kept/api.hash" $(API_HASH) || ! cmp -s "$$kept/api.tar.zst" $(API_FILE); then \
		rm -f $(API_FILE) $(API_HASH); \
		cp "$$kept/api.tar.zst" $(API_FILE); cp "$$kept/api.hash" $(API_HASH); \
	fi; \
	cmp -s '$(REGISTRY_KEPT)/documents' $(API_DOCUMENTS) || cp '$(REGISTRY_KEPT)/documents' $(API_DOCUMENTS)

.PHONY: api-build
api-build: bundle-needs
	@set -e; cd bundle; mkdir -p '$(dir $(API_KEPT))'; \
	work=$$(mktemp -d '$(API_KEPT).XXXXXX'); trap 'rm -rf "$$work"' EXIT; mkdir "$$work/bin" "$$work/out"; \
	echo 'bundle: registry and kubectl $(REGISTRY_VERSION), packed'; \
	cp '$(REGISTRY_KEPT)/registry' "$$work/bin/"; \
	$(PROGRESS) api env GOARCH= CGO_ENABLED=0 go run ./cmd/pack -arch $(BUNDLE_ARCH) -bin "$$work/bin" -component kubernetes=$(REGISTRY_VERSION) \
		-out "$$work/out/api.tar.zst" -hash "$$work/out/api.hash"; \
	rm -rf '$(API_KEPT)'; mv -T "$$work/out" '$(API_KEPT)'
