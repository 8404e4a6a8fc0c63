# The metrics server of the Kubernetes project, a program that test/metricsserver/go.mod pins, and the test that needs it. Included by the
# main Makefile, after that of the control plane.
#
# The first build takes minutes, so it is no part of `make e2e`; what is built is kept in BERTH_CACHE as the control plane is.

METRICS_SERVER := bin/metrics-server

METRICS_SERVER_SOURCES := $(addprefix test/metricsserver/,go.mod go.sum metricsserver.mk)
METRICS_SERVER_KEY      = $(shell { go env GOVERSION GOARCH; cat $(METRICS_SERVER_SOURCES); } | sha256sum | cut -c1-16)

.PHONY: metrics-server
metrics-server: ## parts: build bin/metrics-server for make e2e-top (cached)
	@set -e; kept='$(BERTH_CACHE)/metrics-server/$(METRICS_SERVER_KEY)'; \
	if ! [ -x "$$kept/metrics-server" ]; then \
		echo 'metrics-server: the first build takes some minutes'; \
		mkdir -p "$$(dirname "$$kept")"; work=$$(mktemp -d "$$kept.XXXXXX"); trap 'rm -rf "$$work"' EXIT; \
		(cd test/metricsserver && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$$work/metrics-server" sigs.k8s.io/metrics-server/cmd/metrics-server); \
		chmod 755 "$$work"; rm -rf "$$kept"; mv -T "$$work" "$$kept"; \
	fi; \
	mkdir -p $(dir $(METRICS_SERVER)); ln -sfT "$$kept/metrics-server" $(METRICS_SERVER)

.PHONY: e2e-top
e2e-top: need-root build controlplane metrics-server ## root: run kubectl top with a real metrics server
	BERTH='$(CURDIR)/bin/berth' CONTROLPLANE='$(CURDIR)/$(CONTROLPLANE)' METRICS_SERVER='$(CURDIR)/$(METRICS_SERVER)' \
		go test -tags e2e,bundle,metricsserver -ldflags '$(BUNDLE_LDFLAGS)' -count 1 -v -timeout 15m -run '^TestClusterTop$$' ./test/e2e
