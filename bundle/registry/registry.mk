# The child of an agent that judges what is written to its local API: kube-apiserver's registries (ADR 12), built from the modules that
# bundle/registry/go.mod pins. It is not in the bundle yet. Included by the main Makefile.
#
# The first build takes minutes, so what is built is kept in BERTH_CACHE under a key made from everything that goes into it: it is paid
# for once per machine.
#
# The tag registry keeps what imports k8s.io/kubernetes from `make lint` and `make test`, which would compile all of it once more.
#
# For the rules that need it:  registry (prerequisite)  REGISTRY (the program)  REGISTRY_DOCUMENTS (what it says of itself: discovery and OpenAPI)

BERTH_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth

REGISTRY           := bin/registry
REGISTRY_DOCUMENTS := bin/registry.documents

# What is shared with the agent is among the sources.
REGISTRY_SOURCES := $(addprefix bundle/registry/,go.mod go.sum registry.mk) go.mod go.sum \
	$(sort $(filter-out %_test.go,$(wildcard bundle/registry/*.go bundle/registry/*/*.go internal/localapi/inmemory/*.go internal/localapi/kinds/*.go internal/localapi/registry/*.go internal/localapi/store/*.go)))
REGISTRY_KEY      = $(shell { go env GOVERSION GOARCH; cat $(REGISTRY_SOURCES); } | sha256sum | cut -c1-16)

# What clients are told at /version; the program would know only v0.0.0.
REGISTRY_VERSION  = $(shell cd bundle/registry && go list -m -f '{{.Version}}' k8s.io/kubernetes)
REGISTRY_LDFLAGS  = -s -w $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version, \
	-X $(package).gitVersion=$(REGISTRY_VERSION) \
	-X $(package).gitMajor=$(subst v,,$(word 1,$(subst ., ,$(REGISTRY_VERSION)))) \
	-X $(package).gitMinor=$(word 2,$(subst ., ,$(REGISTRY_VERSION))))

.PHONY: registry
registry: ## build bin/registry, which judges what is written to the local API, and the documents of that (kept in BERTH_CACHE)
	@set -e; kept='$(BERTH_CACHE)'/registry/$(REGISTRY_KEY); \
	if ! [ -f "$$kept/documents" ]; then \
		$(MAKE) --no-print-directory registry-build REGISTRY_KEPT="$$kept"; \
	fi; \
	mkdir -p $(dir $(REGISTRY)); ln -sfT "$$kept/registry" $(REGISTRY); ln -sfT "$$kept/documents" $(REGISTRY_DOCUMENTS)

.PHONY: registry-build
registry-build:
	@set -e; cd bundle/registry; mkdir -p '$(dir $(REGISTRY_KEPT))'; \
	work=$$(mktemp -d '$(REGISTRY_KEPT).XXXXXX'); trap 'rm -rf "$$work"' EXIT; \
	echo 'registry: of Kubernetes $(REGISTRY_VERSION) (the first build takes some minutes)'; \
	$(PROGRESS) registry env CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags registry -ldflags '$(REGISTRY_LDFLAGS)' -o "$$work/registry" .; \
	"$$work/registry" documents "$$work/documents"; \
	chmod 755 "$$work"; rm -rf '$(REGISTRY_KEPT)'; mv -T "$$work" '$(REGISTRY_KEPT)'
