# The kubelet of the Kubernetes project, a program that test/kubelet/go.mod pins, and the tests that swap it for Berth and back. Included by
# the main Makefile, after that of the control plane.
#
# The first build takes minutes, so it is no part of `make e2e`; what is built is kept in BERTH_CACHE as the control plane is.

KUBELET := bin/kubelet

KUBELET_SOURCES := $(addprefix test/kubelet/,go.mod go.sum kubelet.mk)
KUBELET_KEY      = $(shell { go env GOVERSION GOARCH; cat $(KUBELET_SOURCES); } | sha256sum | cut -c1-16)

# What the Node says its kubelet is; the program would know only v0.0.0.
KUBELET_VERSION  = $(shell cd test/kubelet && go list -m -f '{{.Version}}' k8s.io/kubernetes)
KUBELET_LDFLAGS  = -s -w $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version, \
	-X $(package).gitVersion=$(KUBELET_VERSION) \
	-X $(package).gitMajor=$(subst v,,$(word 1,$(subst ., ,$(KUBELET_VERSION)))) \
	-X $(package).gitMinor=$(word 2,$(subst ., ,$(KUBELET_VERSION))))

.PHONY: kubelet
kubelet: ## parts: build bin/kubelet for make e2e-swap (cached)
	@set -e; kept='$(BERTH_CACHE)/kubelet/$(KUBELET_KEY)'; \
	if ! [ -x "$$kept/kubelet" ]; then \
		echo 'kubelet: Kubernetes $(KUBELET_VERSION) (the first build takes some minutes)'; \
		mkdir -p "$$(dirname "$$kept")"; work=$$(mktemp -d "$$kept.XXXXXX"); trap 'rm -rf "$$work"' EXIT; \
		(cd test/kubelet && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(KUBELET_LDFLAGS)' -o "$$work/kubelet" k8s.io/kubernetes/cmd/kubelet); \
		chmod 755 "$$work"; rm -rf "$$kept"; mv -T "$$work" "$$kept"; \
	fi; \
	mkdir -p $(dir $(KUBELET)); ln -sfT "$$kept/kubelet" $(KUBELET)

.PHONY: e2e-swap
e2e-swap: need-root build controlplane kubelet ## root: replace a kubelet by Berth and back while pods run (RUN=name)
	BERTH='$(CURDIR)/bin/berth' CONTROLPLANE='$(CURDIR)/$(CONTROLPLANE)' KUBELET='$(CURDIR)/$(KUBELET)' \
		go test -tags e2e,bundle,kubelet -ldflags '$(BUNDLE_LDFLAGS)' -count 1 -v -p 1 -parallel 1 -timeout 30m -run '$(or $(RUN),^TestSwap)' ./test/e2e
