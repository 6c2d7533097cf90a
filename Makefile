# `make help` lists what there is. Everything large is kept in a cache outside the repository, so only the first run is slow.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CACHE := $(or $(TAILKEEPER_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tailkeeper)
export TAILKEEPER_CACHE := $(CACHE)
# uv from the PATH, or one of our own in the cache.
UV := $(or $(shell command -v uv 2>/dev/null),$(CACHE)/uv/bin/uv)
RUN := $(UV) run --no-sync
export UV_PROJECT_ENVIRONMENT ?= .venv

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(UV) ## The Python environment in .venv, exactly as uv.lock says
	$(UV) sync --frozen --all-extras

$(CACHE)/uv/bin/uv:
	python3 -m venv $(CACHE)/uv
	$(CACHE)/uv/bin/pip install --quiet uv

.PHONY: lint
lint: setup ## Style, types, layers
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports --no-cache

.PHONY: programs
programs: ## API server, etcd, kubelet, Prometheus, Helm … built into the cache (about 12 minutes from nothing)
	hack/local-cluster/programs

.PHONY: models
models: setup ## The model folders that tests, benchmarks and the cluster use (2 minutes from nothing)
	hack/local-cluster/models

.PHONY: try
try: setup ## An embedding and a load of ten seconds, without a cluster; nothing but Python is needed
	hack/local-cluster/models all-minilm-l6-v2
	hack/try

.PHONY: cluster-up
cluster-up: setup ## A real one-node Kubernetes with Prometheus and this tree's images
	hack/local-cluster/up

.PHONY: demo
demo: cluster-up ## The whole loop: serve, five ways to batch, a bad setting that mends itself; leaves it up to look at
	KUBECONFIG=$(CACHE)/cluster/admin.kubeconfig PATH=$(CACHE)/bin:$$PATH hack/demo

.PHONY: cluster-down
cluster-down: ## Stop the cluster and clear everything it made
	hack/local-cluster/down

.PHONY: images
images: ## Build the images from their Dockerfiles and load them into the cluster
	hack/local-cluster/images

.PHONY: generate
generate: setup ## CRDs, their copies in the chart, and the API reference, from the pydantic models
	$(RUN) python -m tailkeeper.api.crd crds
	$(RUN) python -m tailkeeper.bench.report > docs/reference/bench-report.schema.json
	$(RUN) python -m tailkeeper.api.reference docs/reference/api.md
	hack/generate

.PHONY: test
test: lint test-unit test-integration test-e2e ## Everything: lint, unit, integration (API server, Prometheus), end to end

.PHONY: test-unit
test-unit: setup ## Needs nothing but Python
	$(RUN) pytest -q tests/unit

.PHONY: test-integration
test-integration: setup programs models ## Real API server, real Prometheus, real worker processes
	$(RUN) pytest -q tests/integration

.PHONY: test-e2e
test-e2e: setup ## On the local cluster, which it starts and stops unless one is up already
	hack/with-cluster $(RUN) pytest -q tests/e2e

.PHONY: bench-ground
bench-ground: setup ## Figures of the ground: live settings, rolling update, rest, 200 policies (about 40 minutes)
	hack/with-cluster hack/with-operator hack/bench-ground

.PHONY: bench-first-light
bench-first-light: setup ## The whole loop measured: five ways to batch, recovery from a bad ceiling, no Prometheus (about 50 minutes)
	hack/with-cluster hack/with-operator $(RUN) python -m benchmarks.first_light

.PHONY: bench-scheduling
bench-scheduling: setup ## Figures of the scheduling core, simulated (about 10 minutes; CHAT=… CODE=… add the founding case on recorded loads)
	$(RUN) python benchmarks/scheduling.py
	$(if $(CHAT),$(RUN) python benchmarks/founding.py $(CHAT) $(CODE))

.PHONY: bench-engines
bench-engines: setup models ## causal-lm against a bare forward loop and behind the worker's HTTP; kept under benchmarks/results
	$(RUN) python benchmarks/engines.py --keep
