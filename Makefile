# From nothing but Python 3.10+ and make: `make demo`, which uses a C++ compiler where there is one. `make test` needs g++.
# Java comes from PyPI.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
FUZZ_STAMP := .venv/.installed-fuzz
MUTANTS_STAMP := .venv/.installed-mutants
HOSTS_STAMP := .hosts/.installed
# Workers for `make test`: one more than cores, because the worker with the end-to-end tests mostly waits for servers.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1)
.PHONY: help install lock demo demo-ray test test-all test-browser bench bench-serve bench-hosts bench-backward bench-compare seeds chaos chaos-cluster soak faults properties sanitize compose fuzz mutants operators test-matrix test-arm64 test-gpu bench-gpu test-hosts test-hosts-all lint types format clean
.DELETE_ON_ERROR:

help:
	@echo "make demo     train a small LSTM, archive it, serve it, send requests to it: about a minute after the installation"
	@echo "make demo-ray  a model on two nodes of Ray: a replica is killed, a node removed, no request lost: about 3 minutes"
	@echo "make test     all tests, also end to end through a real TorchServe: about 25 minutes on two slow cores"
	@echo "make test-all the same, and more engines, models and forms"
	@echo "make bench    the engine compared with other engines, on an idle machine: about 4 minutes"
	@echo "make bench-serve  neuron-lstm serve compared with a plain handler on stock settings, by CPU time: about 8 minutes"
	@echo "make bench-hosts  Ray Serve with our archive, compared with a plain application and TorchServe: about 4 minutes"
	@echo "make chaos    200 sessions, of which none may be lost: processes killed, disk full, clock wrong, Redis paused: about 10 minutes"
	@echo "make chaos-cluster  the same on Ray Serve: replicas, nodes and a Redis primary killed, new weights under load: about 8 minutes"
	@echo "make soak     good and bad requests for half an hour: answers, memory, descriptors and threads: about 33 minutes"
	@echo "make faults   fault injection: allocations of the C++ library for recurrences and calls on files fail once, or always: about 30 minutes"
	@echo "make properties  the property-based tests with many new values, which \`make test\` has few of: about an hour"
	@echo "make sanitize the C++ library for recurrences under GCC's sanitizers (address, undefined, thread): about 10 minutes"
	@echo "make compose  2,000 random models compared with each request alone, or COMPOSED_MODELS=100: hours"
	@echo "make fuzz MINUTES=10  requests, manifests, session records and tokens from a coverage-guided fuzzer"
	@echo "make mutants  mutation testing: changes of the code that tests must notice: hours"
	@echo "make operators  the table of torch's operators by release, read from the releases: about 1 minute, 1 GB"
	@echo "make test-matrix  other releases of Python, torch and every dependency: gigabytes, more than an hour"
	@echo "make test-arm64  the C++ library for recurrences on arm64, under an emulator: about 1 minute"
	@echo "make test-gpu  the engine cuda on an NVIDIA GPU, or not run: about 1 minute"
	@echo "make bench-gpu  the engine cuda compared with other implementations on an NVIDIA GPU: about 5 minutes"
	@echo "make test-browser  the report of neuron-lstm tune in Chromium, which is installed from Debian where there is none: about 1 minute"
	@echo "make test-hosts  archives on Ray Serve and KServe, in an environment of their own: about 5 minutes"
	@echo "make test-hosts-all  the same, and the tests that each start Ray: about 12 minutes"
	@echo "make bench-backward  training with packing, with a mask and lowered: about 3 minutes"
	@echo "make bench-compare BASE=COMMIT  CPU time of a request and packaging, compared with another commit: about 8 minutes"
	@echo "make seeds    every example of the tracing APIs on every engine: about 6 minutes"
	@echo "make lint     ruff: rules and formatting"
	@echo "make types    mypy --strict"
	@echo "make format   let ruff format the code"
	@echo "make install  only create .venv and install into it"
	@echo "make lock     choose the newest releases that the project allows, and write their digests to requirements.lock"
	@echo "make clean    remove .venv and what the tools cached"

install: $(STAMP)

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
lock: $(STAMP)
	@printf 'hatchling\neditables\n' | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
		--extra dev -c constraints.txt --no-emit-package torch --no-annotate --no-header --no-emit-index-url \
		pyproject.toml - -o requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
		--extra ray --extra kserve -c constraints.txt --no-emit-package torch --no-annotate --no-header --no-emit-index-url \
		pyproject.toml -o hosts.lock

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

demo-ray: export OMP_WAIT_POLICY = passive
demo-ray: $(HOSTS_STAMP)
	@.hosts/bin/python examples/ray_serve/demo.py

# Several processes compute at once here: threads that wait by spinning would take the cores from those that work.
test test-all: export OMP_WAIT_POLICY = passive
# Hundreds of processes import the same files, which are compiled once where Python may keep what it compiled.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not long"

test-all: $(STAMP)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

bench: $(STAMP)
	@$(BIN)/python -m tools.bench engines

bench-serve: $(STAMP)
	@$(BIN)/python -m tools.bench serve

bench-hosts: $(HOSTS_STAMP)
	@.hosts/bin/python -m tools.bench hosts

chaos: $(STAMP)
	@$(BIN)/python -m chaos

chaos-cluster: $(HOSTS_STAMP)
	@.hosts/bin/python -m chaos.cluster

# Minutes of load.
soak: MINUTES ?= 30
soak: $(STAMP)
	@$(BIN)/python -m soak --minutes $(MINUTES)

# Each of these tests lets one resource after the other fail once.
faults: export OMP_WAIT_POLICY = passive
faults: $(STAMP)
	@$(BIN)/python -m pytest tests/backends/native/test_faults.py tests/sessions/test_store_faults.py \
		tests/archiver_ext/test_packaging_faults.py tests/handlers/test_loading_faults.py

# Tests that set a number of values themselves, because each takes long, keep it.
properties: $(STAMP)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m hypothesis --hypothesis-profile many

# Without a compiler, or without its sanitizers, the tests say "not run".
sanitize: export OMP_WAIT_POLICY = passive
sanitize: $(STAMP)
	@$(BIN)/python -m pytest tests/backends/native/test_sanitizers.py

# So many random models.
compose: export COMPOSED_MODELS ?= 2000
compose: export OMP_WAIT_POLICY = passive
compose: $(STAMP)
	@$(BIN)/python -m pytest -s -o timeout=0 tests/lowering/test_composed.py

# Minutes of all targets together.
fuzz: MINUTES ?= 10
fuzz: $(FUZZ_STAMP)
	@$(BIN)/python -m tools.fuzz --minutes $(MINUTES)

# Files are changed in place, so in a copy: the last commit. A run that was stopped continues; `make clean` begins anew.
MUTANTS := build/mutants
mutants: export PATH := $(CURDIR)/$(BIN):$(PATH)
mutants: export PYTHONPATH := $(CURDIR)/$(MUTANTS)/src
mutants: export PYTHONDONTWRITEBYTECODE := 1
mutants: $(MUTANTS_STAMP)
	@test -e $(MUTANTS)/session.sqlite || { rm -rf $(MUTANTS) && git clone --quiet . $(MUTANTS) && cd $(MUTANTS) && \
		cosmic-ray init tools/mutants.toml session.sqlite && cr-filter-operators session.sqlite tools/mutants.toml; }
	@cd $(MUTANTS) && cosmic-ray exec tools/mutants.toml session.sqlite && cr-report --show-diff --surviving-only session.sqlite

# Without the cross compiler or the emulator the tests say "not run".
test-arm64: $(STAMP)
	@$(BIN)/python -m pytest tests/arm64

# Without a GPU the tests say "not run".
test-gpu: $(STAMP)
	@$(BIN)/python -m pytest -m gpu tests/gpu

bench-gpu: $(STAMP)
	@$(BIN)/python -m tools.bench gpu

# A browser is no part of the environment. Without one, this installs Debian's.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable chrome
test-browser: $(STAMP)
	@command -v $(BROWSERS) >/dev/null || $$([ "$$(id -u)" = 0 ] || echo sudo) apt-get install -y --no-install-recommends chromium
	@$(BIN)/python -m pytest -m browser tests/archiver_ext/commands/tuning

# Servers bring other releases of what TorchServe needs. Torch and the tools are those of .venv, which is read after it.
$(HOSTS_STAMP): $(STAMP) hosts.lock
	@$(BIN)/python -m venv --clear --without-pip .hosts
	@$(BIN)/python -m pip --python .hosts/bin/python install --quiet --no-compile --no-deps --require-hashes -r hosts.lock
	@$(call compiled,.hosts)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$(.hosts/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_venv.pth"
	@touch $@

# Ray and KServe use what others deprecate.
TEST_HOSTS := .hosts/bin/python -m pytest -o addopts="--import-mode=importlib --strict-markers -ra" -W ignore::DeprecationWarning -W ignore::ResourceWarning -W ignore::FutureWarning tests/hosts/ray tests/hosts/kserve

test-hosts: $(HOSTS_STAMP)
	@$(TEST_HOSTS) -m "not long"

test-hosts-all: $(HOSTS_STAMP)
	@$(TEST_HOSTS)

# For a release, and after one of torch. Corners at a time.
test-matrix: JOBS ?= 1
test-matrix: $(STAMP)
	@$(BIN)/python -m tools.matrix --jobs $(JOBS)

operators: $(STAMP)
	@$(BIN)/python -m tools.operators

$(MUTANTS_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mutants]'
	@touch $@

$(FUZZ_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[fuzz]'
	@touch $@

bench-backward: $(STAMP)
	@$(BIN)/python -m tools.bench train

# The working tree is compared, as it stands.
bench-compare: $(STAMP)
	@$(BIN)/python -m tools.bench compare $(BASE)

seeds: $(STAMP)
	@$(BIN)/python -m examples.seeds

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf .venv .hosts .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
