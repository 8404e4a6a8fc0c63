# The control plane for tests: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kube-proxy and kubeadm in one program,
# built from the modules that test/controlplane/go.mod pins. Included by the main Makefile.
#
# The first build takes minutes, so what is built is kept in BERTH_CACHE under a key made from everything that goes into it: it is paid
# for once per machine.
#
# For the rules that need it:  controlplane (prerequisite)  CONTROLPLANE (the program)

BERTH_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth

CONTROLPLANE := bin/controlplane
# The folder of `make cluster`. Short, because there is a socket in it.
CLUSTER_DIR  ?= /tmp/berth-cluster
CLUSTER_NODE ?= $(shell hostname | tr A-Z a-z)
# Another cluster beside it needs another CLUSTER_DIR and another port for its kubelet's API.
CLUSTER_PORT ?= 10250

CONTROLPLANE_SOURCES := $(addprefix test/controlplane/,go.mod go.sum controlplane.mk) \
	$(sort $(filter-out %_test.go,$(wildcard test/controlplane/*.go test/controlplane/internal/*/*.go)))
CONTROLPLANE_KEY      = $(shell { go env GOVERSION GOARCH; cat $(CONTROLPLANE_SOURCES); } | sha256sum | cut -c1-16)

# What `kubectl version` and clients are told; the program would know only v0.0.0.
CONTROLPLANE_VERSION  = $(shell cd test/controlplane && go list -m -f '{{.Version}}' k8s.io/kubernetes)
CONTROLPLANE_LDFLAGS  = -s -w $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version, \
	-X $(package).gitVersion=$(CONTROLPLANE_VERSION) \
	-X $(package).gitMajor=$(subst v,,$(word 1,$(subst ., ,$(CONTROLPLANE_VERSION)))) \
	-X $(package).gitMinor=$(word 2,$(subst ., ,$(CONTROLPLANE_VERSION))))

.PHONY: controlplane
controlplane: ## parts: build bin/controlplane, a Kubernetes control plane for tests, bin/kubectl and bin/kubeadm (cached)
	@set -e; kept='$(BERTH_CACHE)'/controlplane/$(CONTROLPLANE_KEY); \
	if ! [ -x "$$kept/controlplane" ]; then \
		$(MAKE) --no-print-directory -f test/controlplane/controlplane.mk controlplane-build CONTROLPLANE_KEPT="$$kept"; \
	fi; \
	mkdir -p $(dir $(CONTROLPLANE)); \
	ln -sfT "$$kept/controlplane" $(CONTROLPLANE); for name in kubectl kubeadm; do ln -sfT controlplane $(dir $(CONTROLPLANE))$$name; done

.PHONY: controlplane-build
controlplane-build:
	@set -e; cd test/controlplane; mkdir -p '$(dir $(CONTROLPLANE_KEPT))'; \
	work=$$(mktemp -d '$(CONTROLPLANE_KEPT).XXXXXX'); trap 'rm -rf "$$work"' EXIT; \
	echo 'controlplane: Kubernetes $(CONTROLPLANE_VERSION) (the first build takes some minutes)'; \
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags controlplane -ldflags '$(CONTROLPLANE_LDFLAGS)' -o "$$work/controlplane" .; \
	chmod 755 "$$work"; rm -rf '$(CONTROLPLANE_KEPT)'; mv -T "$$work" '$(CONTROLPLANE_KEPT)'

.PHONY: cluster
cluster: need-root controlplane build ## clusters: start a control plane and a Berth node in CLUSTER_DIR on CLUSTER_PORT; eval "$$(make -s cluster)" sets KUBECONFIG
	@if ! $(CONTROLPLANE) status --dir '$(CLUSTER_DIR)' >/dev/null 2>&1; then \
		$(CONTROLPLANE) down --rm --dir '$(CLUSTER_DIR)' && \
		$(CONTROLPLANE) up --detach --dir '$(CLUSTER_DIR)' --node '$(CLUSTER_NODE)' >/dev/null; \
	fi
	@test/controlplane/node.sh up '$(CLUSTER_DIR)' '$(CLUSTER_NODE)' '$(CLUSTER_PORT)' bin/berth bin/kubectl
	@$(CONTROLPLANE) status --dir '$(CLUSTER_DIR)'

.PHONY: cluster-down
cluster-down: need-root controlplane ## clusters: stop and remove the cluster of make cluster
	@test/controlplane/node.sh down '$(CLUSTER_DIR)' bin/berth
	@$(CONTROLPLANE) down --rm --dir '$(CLUSTER_DIR)'
