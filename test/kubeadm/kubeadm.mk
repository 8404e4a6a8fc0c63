# A cluster of two Berth nodes made by kubeadm, and the tests on it. Included by the main Makefile, after that of the control plane, which has
# kubeadm and kube-proxy, and of the metrics server.
#
# CoreDNS is built from the module that test/coredns/go.mod pins, and kept in BERTH_CACHE as the control plane is.

COREDNS     := bin/coredns
# The folder of `make kubeadm`. Short, because there are sockets in it.
KUBEADM_DIR ?= /tmp/berth-kubeadm

COREDNS_SOURCES := $(addprefix test/coredns/,go.mod go.sum main.go)
COREDNS_KEY      = $(shell { go env GOVERSION GOARCH; cat $(COREDNS_SOURCES); } | sha256sum | cut -c1-16)

KUBEADM_ENV = KUBERNETES_VERSION=$(CONTROLPLANE_VERSION) KUBELET_SERVICE='$(CURDIR)/docs/kubelet.service'

.PHONY: coredns
coredns:
	@set -e; kept='$(BERTH_CACHE)/coredns/$(COREDNS_KEY)'; \
	if ! [ -x "$$kept/coredns" ]; then \
		echo 'coredns: the first build takes a minute or two'; \
		mkdir -p "$$(dirname "$$kept")"; work=$$(mktemp -d "$$kept.XXXXXX"); trap 'rm -rf "$$work"' EXIT; \
		(cd test/coredns && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$$work/coredns" .); \
		chmod 755 "$$work"; rm -rf "$$kept"; mv -T "$$work" "$$kept"; \
	fi; \
	mkdir -p $(dir $(COREDNS)); ln -sfT "$$kept/coredns" $(COREDNS)

.PHONY: kubeadm-build
kubeadm-build: need-root build controlplane coredns metrics-server
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/kubeadm-cluster ./test/kubeadm

.PHONY: kubeadm
kubeadm: kubeadm-build ## clusters: create a two-node Berth cluster with kubeadm in KUBEADM_DIR; eval "$$(make -s kubeadm)" sets KUBECONFIG
	@$(KUBEADM_ENV) bin/kubeadm-cluster up '$(KUBEADM_DIR)' --detach

.PHONY: kubeadm-down
kubeadm-down: kubeadm-build ## clusters: stop and remove the cluster of make kubeadm
	@bin/kubeadm-cluster down '$(KUBEADM_DIR)'

.PHONY: e2e-kubeadm
e2e-kubeadm: kubeadm-build ## root: run the tests on a two-node kubeadm cluster (RUN=name)
	$(KUBEADM_ENV) KUBEADM_CLUSTER='$(CURDIR)/bin/kubeadm-cluster' FORMAT=standard-verbose \
		$(RETRY) ./test/kubeadm -tags e2e -count 1 -v -timeout 30m $(if $(RUN),-run '$(RUN)')

.PHONY: e2e-vm-kubeadm
e2e-vm-kubeadm: vm-image kubeadm-build ## vm: create a one-node kubeadm cluster with cgroup v2 and systemd (VM_LOGS=bin/vm)
	@go test -c -tags e2e,vm -ldflags '-s -w' -o bin/kubeadm.test ./test/kubeadm
	@test/vm/run.sh '$(VM_IMAGE)' '$(VM_LOGS)' 3600 '^TestVMKubeadm$$' bin/berth bin/kubeadm.test $(addprefix bin/,controlplane coredns metrics-server kubeadm-cluster)
