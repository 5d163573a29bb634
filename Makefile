# `make demo` and `make test` need Python 3.11+, git and make; everything else they set up in .venv.
PYTHON ?= python3
BIN := .venv/bin
# Without its bytecode, every process that a test starts would compile all of Runner anew.
unexport PYTHONDONTWRITEBYTECODE
ready := .venv/.ready
# Short tests wait for half of their time, long ones (for processes) for most of it, so more of them run at once.
long := tests/crash tests/lifecycle
short := tests --ignore tests/crash --ignore tests/lifecycle

.PHONY: demo docs test test-rest test-all test-web check collected format sweep fuzz compose-test bench size requirements clean

demo: $(ready)
	$(BIN)/runner run jobs/quickstart.toml

# Every feature once, with fixed examples.
test: $(ready)
	$(MAKE) --no-print-directory -j 2 check collected
	$(BIN)/pytest -q --part quick -n 4 --dist worksteal --durations 10 $(short)
	$(BIN)/pytest -q --part quick -n 6 --dist worksteal --durations 10 $(long)

# What `make test` leaves out, but for the whole sweep: all of Postgres, all lifecycles.
test-rest: $(ready)
	$(BIN)/pytest -q --part rest -n 3 --dist worksteal --durations 10 $(short)
	$(BIN)/pytest -q --part rest -n 6 --dist worksteal --durations 10 $(long)

# Everything, with random examples and the whole sweep: hours.
test-all: $(ready)
	$(MAKE) --no-print-directory check
	seed=$$(date +%s); echo "examples from --hypothesis-seed=$$seed"; \
		$(BIN)/pytest -q -n 6 --dist worksteal --hypothesis-seed=$$seed
	$(MAKE) --no-print-directory sweep

# The pages in Debian's Chromium, with screenshots of all in build/web.
test-web: $(ready)
	$(BIN)/pytest -q -n 2 tests/web/test_chromium.py -k "not postgresql"

# Compiles the tests on the core that mypy leaves idle; else each of the six processes would.
collected: $(ready)
	@said=$$($(BIN)/pytest --collect-only -qq 2>&1) || { echo "$$said"; exit 1; }

check: $(ready)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(ready)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Every boundary of the crash sweep, on both databases; `make test` takes a sample of it.
sweep: $(ready)
	RUNNER_SWEEP=all $(BIN)/pytest -q -n 4 --dist worksteal --timeout 3600 tests/crash tests/workspace/runs/test_kill.py

# Random commands, judged by real bash: what runs must be what the rules decided on. Then commands in the
# sandbox, over a tree of canaries: what they do must be what the rules allow.
fuzz: $(ready)
	$(BIN)/python -m tests.permissions.fuzz --seconds 60
	$(BIN)/python -m tests.permissions.fuzz_sandbox --seconds 60

# docker-compose.yml on a real engine (Docker, or Podman as `docker`), while its containers are killed.
compose-test: $(ready)
	$(BIN)/python -m tests.compose

# The tables of keys and views in docs/, and jobs/job.schema.json, from the code.
docs: $(ready)
	$(BIN)/python -m docs.tables

bench: $(ready)
	$(BIN)/python -m bench

# Lines and modules of runner/ and migrations/, and the largest modules of each package.
size: $(ready)
	@$(BIN)/python -m bench.size

# Pins everything anew, with hashes and without naming an index: for the image, for its build, to develop.
compile := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options
requirements: $(ready)
	$(compile) --upgrade --extra bedrock --extra images --extra mcp --extra otel --extra vertex --extra web -o requirements.txt pyproject.toml
	$(compile) --upgrade --only-build-deps --build-deps-for wheel -o requirements-build.txt pyproject.toml
	$(compile) --upgrade --extra dev --extra bedrock --extra images --extra mcp --extra otel --extra vertex --extra web -o requirements-dev.txt pyproject.toml

$(ready): requirements-dev.txt pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(ready)

clean:
	rm -rf .venv .runner build dist *.egg-info
