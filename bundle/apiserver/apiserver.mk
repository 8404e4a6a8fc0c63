# The child of an agent that judges what is written to its local API: kube-apiserver's registries (ADR 12), and kubectl, in one program, built
# from the modules that bundle/apiserver/go.mod pins. Included by the main Makefile.
#
# In berth it is an archive of its own beside the runtime's, as most machines need it late or never, and it has 97 MB. As one archive both
# would be 0.6 MB smaller.
#
# The first build takes minutes, so what is built is kept in BERTH_CACHE under a key made from everything that goes into it: it is paid
# for once per machine.
#
# The tag apiserver keeps what imports k8s.io/kubernetes from `make lint` and `make test`, which would compile all of it once more.
#
# For the rules that need it:  apiserver (prerequisite)  APISERVER (the program)  APISERVER_DOCUMENTS (what it says of itself: discovery and OpenAPI)
# For the rules that build berth:  bundle (prerequisite) makes the archive and brings the documents, too; the archive's hash is in BUNDLE_LDFLAGS

BERTH_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth

APISERVER           := bin/apiserver
APISERVER_DOCUMENTS := bin/apiserver.documents

# What is shared with the agent is among the sources.
APISERVER_SOURCES := $(addprefix bundle/apiserver/,go.mod go.sum apiserver.mk) go.mod go.sum \
	$(sort $(filter-out %_test.go,$(wildcard bundle/apiserver/*.go bundle/apiserver/*/*.go internal/localapi/loopback/*.go internal/localapi/kinds/*.go internal/localapi/apiserver/*.go internal/localapi/store/*.go)))
APISERVER_KEY      = $(shell { go env GOVERSION GOARCH; cat $(APISERVER_SOURCES); } | sha256sum | cut -c1-16)

# What clients are told at /version; the program would know only v0.0.0.
APISERVER_VERSION  = $(shell cd bundle/apiserver && go list -m -f '{{.Version}}' k8s.io/kubernetes)
APISERVER_LDFLAGS  = -s -w $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version, \
	-X $(package).gitVersion=$(APISERVER_VERSION) \
	-X $(package).gitMajor=$(subst v,,$(word 1,$(subst ., ,$(APISERVER_VERSION)))) \
	-X $(package).gitMinor=$(word 2,$(subst ., ,$(APISERVER_VERSION))))

APISERVER_KEPT     = $(BERTH_CACHE)/apiserver/$(APISERVER_KEY)

.PHONY: apiserver
apiserver: apiserver-kept ## parts: build bin/apiserver, the API writer of the local API and kubectl, and its discovery documents (cached)
	@mkdir -p $(dir $(APISERVER)); ln -sfT '$(APISERVER_KEPT)/apiserver' $(APISERVER); ln -sfT '$(APISERVER_KEPT)/documents' $(APISERVER_DOCUMENTS)

.PHONY: apiserver-kept
apiserver-kept:
	@set -e; kept='$(APISERVER_KEPT)'; [ -f "$$kept/documents" ] || $(MAKE) --no-print-directory apiserver-build APISERVER_KEPT="$$kept"

.PHONY: apiserver-build
apiserver-build:
	@set -e; cd bundle/apiserver; mkdir -p '$(dir $(APISERVER_KEPT))'; \
	work=$$(mktemp -d '$(APISERVER_KEPT).XXXXXX'); trap 'rm -rf "$$work"' EXIT; \
	echo 'apiserver: Kubernetes $(APISERVER_VERSION) (the first build takes some minutes)'; \
	$(PROGRESS) apiserver env CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags apiserver -ldflags '$(APISERVER_LDFLAGS)' -o "$$work/apiserver" .; \
	native=$$(env GOARCH= go env GOARCH); program="$$work/apiserver"; \
	if [ "$$(go env GOARCH)" != "$$native" ]; then \
		program="$$work/native"; env GOARCH= CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags apiserver -ldflags '$(APISERVER_LDFLAGS)' -o "$$program" .; \
	fi; \
	"$$program" documents "$$work/documents"; rm -f "$$work/native"; \
	chmod 755 "$$work"; rm -rf '$(APISERVER_KEPT)'; mv -T "$$work" '$(APISERVER_KEPT)'

API_FILE := internal/runtime/embedded/bundle/api.tar.zst
API_HASH := internal/runtime/embedded/bundle/api.hash
API_DOCUMENTS := internal/runtime/embedded/bundle/api.documents
API_KEY   = $(shell { echo $(APISERVER_KEY); cat bundle/cmd/pack/*.go; } | sha256sum | cut -c1-16)

bundle: api

.PHONY: api
api: apiserver-kept
	@set -e; kept='$(BERTH_CACHE)'/api/$(API_KEY); \
	[ -f "$$kept/api.hash" ] || $(MAKE) --no-print-directory api-build API_KEPT="$$kept"; \
	mkdir -p $(dir $(API_FILE)); \
	if ! cmp -s "$$kept/api.hash" $(API_HASH) || ! cmp -s "$$kept/api.tar.zst" $(API_FILE); then \
		rm -f $(API_FILE) $(API_HASH); \
		cp "$$kept/api.tar.zst" $(API_FILE); cp "$$kept/api.hash" $(API_HASH); \
	fi; \
	cmp -s '$(APISERVER_KEPT)/documents' $(API_DOCUMENTS) || cp '$(APISERVER_KEPT)/documents' $(API_DOCUMENTS)

.PHONY: api-build
api-build: bundle-needs
	@set -e; cd bundle; mkdir -p '$(dir $(API_KEPT))'; \
	work=$$(mktemp -d '$(API_KEPT).XXXXXX'); trap 'rm -rf "$$work"' EXIT; mkdir "$$work/bin" "$$work/out"; \
	echo 'bundle: apiserver and kubectl $(APISERVER_VERSION), packed'; \
	cp '$(APISERVER_KEPT)/apiserver' "$$work/bin/"; \
	$(PROGRESS) api env GOARCH= CGO_ENABLED=0 go run ./cmd/pack -arch $(BUNDLE_ARCH) -bin "$$work/bin" -component kubernetes=$(APISERVER_VERSION) \
		-out "$$work/out/api.tar.zst" -hash "$$work/out/api.hash"; \
	rm -rf '$(API_KEPT)'; mv -T "$$work/out" '$(API_KEPT)'
