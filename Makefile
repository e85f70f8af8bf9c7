# From nothing but Python 3.10+ and make: `make demo`, which uses a C++ compiler where there is one. `make test` needs g++.
# Java comes from PyPI.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
FUZZ_STAMP := .venv/.installed-fuzz
HOSTS_STAMP := .hosts/.installed
# Workers for `make test`: one more than cores, because the worker with the end-to-end tests mostly waits for servers.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1)
.PHONY: help install lock demo demo-ray test test-all test-hosts bench bench-serve bench-hosts bench-backward bench-gpu bench-compare seeds stress compose fuzz test-browser test-arm64 matrix lint types format clean
.DELETE_ON_ERROR:

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install into it, by the digests of requirements.lock

# pip compiles on one core alone. Files for another Python are not compiled, as by pip.
compiled = $(1)/bin/python -m compileall -q -j 0 $(1)/lib > /dev/null || true

# Every package but torch comes with the digest that the lock has: torch's builds differ by package index. What torch
# requires is there before it, so it brings nothing else. pip resolves nothing else, so nothing can choose a larger torch.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	@echo "[1/5] creating .venv"
	@$(PYTHON) -m venv --clear .venv
	@echo "[2/5] installing TorchServe, a Java runtime and the tools, by the digests of requirements.lock"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
	@echo "[3/5] installing torch, some hundred MB"
	@$(BIN)/python -m pip install --no-compile --progress-bar on -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@echo "[4/5] compiling Python files, on all cores"
	@$(call compiled,.venv)
	@echo "[5/5] installing the plug-in"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# The newest releases that the project allows, for every Python and platform, with the digests of their files.
lock: $(STAMP) ## choose the newest releases that the project allows, and write their digests to requirements.lock
	@printf 'hatchling\neditables\n' | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
		--extra dev -c constraints.txt --no-emit-package torch --no-annotate --no-header --no-emit-index-url \
		pyproject.toml - -o requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
		--extra ray --extra kserve -c constraints.txt --no-emit-package torch --no-annotate --no-header --no-emit-index-url \
		pyproject.toml -o hosts.lock

demo: $(STAMP) ## train a small LSTM, archive it, serve it, send requests to it: about a minute after the installation
	@$(BIN)/python examples/demo.py

demo-ray: export OMP_WAIT_POLICY = passive
demo-ray: $(HOSTS_STAMP) ## a model on two nodes of Ray: a replica is killed, a node removed, no request lost: about 3 minutes
	@.hosts/bin/python examples/ray_serve/demo.py

# Several processes compute at once here: threads that wait by spinning would take the cores from those that work.
test test-all: export OMP_WAIT_POLICY = passive
# Hundreds of processes import the same files, which are compiled once where Python may keep what it compiled.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: MARK ?= not ci and not long
test: $(STAMP) ## tests of every part, also end to end through a real TorchServe: about 8 minutes
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "$(MARK)"

test-all: MARK ?=
test-all: $(STAMP) ## the same, and more engines, models and forms; MARK="ci and not long" runs what CI adds to make test
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "$(MARK)"

# Servers bring other releases of what TorchServe needs. Torch and the tools are those of .venv, which is read after it.
$(HOSTS_STAMP): $(STAMP) hosts.lock
	@$(BIN)/python -m venv --clear --without-pip .hosts
	@$(BIN)/python -m pip --python .hosts/bin/python install --quiet --no-compile --no-deps --require-hashes -r hosts.lock
	@$(call compiled,.hosts)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$(.hosts/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_venv.pth"
	@touch $@

# Ray and KServe use what others deprecate.
test-hosts: MARK ?= not long
test-hosts: $(HOSTS_STAMP) ## archives on Ray Serve and KServe, in an environment of their own: about 5 minutes; MARK= adds the long ones
	@.hosts/bin/python -m pytest -o addopts="--import-mode=importlib --strict-markers -ra" -W ignore::DeprecationWarning \
		-W ignore::ResourceWarning -W ignore::FutureWarning -m "$(MARK)" tests/hosts/ray tests/hosts/kserve tests/hosts/torchserve/test_grpc.py

bench: $(STAMP) ## the engine compared with other engines: about 4 minutes, on a machine that does nothing else
	@$(BIN)/python -m tools.bench engines

bench-serve: $(STAMP) ## neuron-lstm serve, on TorchServe and built-in, compared with a plain handler on a stock TorchServe: about 10 minutes
	@$(BIN)/python -m tools.bench serve

bench-hosts: $(HOSTS_STAMP) ## an archive on Ray Serve compared with plain applications and TorchServe: about 4 minutes
	@.hosts/bin/python -m tools.bench hosts

bench-backward: $(STAMP) ## training with packing, with a mask and lowered: about 3 minutes
	@$(BIN)/python -m tools.bench train

bench-gpu: $(STAMP) ## the engine cuda compared with other implementations on an NVIDIA GPU: about 5 minutes
	@$(BIN)/python -m tools.bench gpu

# The working tree is compared, as it stands.
bench-compare: $(STAMP) ## BASE=COMMIT: CPU time of a request, and packaging, compared with another commit: about 8 minutes
	@$(BIN)/python -m tools.bench compare $(BASE)

seeds: $(STAMP) ## the examples of the tracing APIs on every engine: about 6 minutes
	@$(BIN)/python -m examples.seeds

# Faults, or good and bad requests without faults; on TorchServe, or on three nodes of Ray.
stress: MINUTES ?= 10
stress: FAULTS ?= yes
HOSTS ?= torchserve
stress: $(if $(filter ray,$(HOSTS)),$(HOSTS_STAMP),$(STAMP)) ## sessions and requests under load; FAULTS=yes MINUTES=10, or FAULTS=no MINUTES=30, or HOSTS=ray
	@$(if $(filter ray,$(HOSTS)),.hosts,.venv)/bin/python -m tools.stress --faults $(FAULTS) --hosts $(HOSTS) --minutes $(MINUTES)

# So many random models.
compose: export COMPOSED_MODELS ?= 2000
compose: export OMP_WAIT_POLICY = passive
compose: $(STAMP) ## random models compared with each request alone; COMPOSED_MODELS=2000 of them: hours
	@$(BIN)/python -m pytest -s -o timeout=0 tests/lowering/test_composed.py

# Minutes of all targets together.
fuzz: MINUTES ?= 10
fuzz: $(FUZZ_STAMP) ## MINUTES=10: requests, manifests, records and tokens from a coverage-guided fuzzer
	@$(BIN)/python -m tools.fuzz --minutes $(MINUTES)

test-browser: $(STAMP) ## a page that streams to the built-in server, in a headless Chromium: about 1 minute
	@$(BIN)/python -m pytest tests/examples/test_slider.py

# Without the cross compiler or the emulator the tests say "not run".
test-arm64: $(STAMP) ## the library for recurrences on arm64, under an emulator: about 1 minute
	@$(BIN)/python -m pytest tests/arm64

# For a release, and after one of torch. Corners at a time.
matrix: CORNERS ?= 1
matrix: $(STAMP) ## other releases of Python, torch and every dependency: gigabytes, more than an hour
	@$(BIN)/python -m tools.matrix --jobs $(CORNERS)

$(FUZZ_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[fuzz]'
	@touch $@

lint: $(STAMP) ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict
	@$(BIN)/mypy

format: $(STAMP) ## let ruff format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Remove the environments, and what the tools cached.
clean:
	rm -rf .venv .hosts .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
