# Every target sets up what it needs; a second call finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
INSTALL_BROWSER := ($(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq chromium >/dev/null)
# A process a core; threads of theirs would only wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto

.PHONY: demo test setup browser check docs slow fuzz bench comparison calibration mutation notebooks gallery zoo clean

demo: setup
	$(BIN)/epsilometer demo

test: setup browser
	$(PYTEST) -m "not slow"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

# The page is tested in a real browser: Debian's. Elsewhere those tests are skipped, in CI they fail.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || $(INSTALL_BROWSER) || \
	  echo "No chromium: the tests of the page will be skipped."

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest -q --doctest-modules --ignore-glob="*_cuda.py" src README.md docs --doctest-glob="*.md"

# The site, into site/: strict, so that a link or an anchor that leads nowhere fails (with --quiet it
# would not). Nothing is fetched.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

slow: setup browser
	$(PYTEST) -m slow

# Ten minutes for each of two dozen readers; make fuzz MINUTES=1 for less.
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10)

bench: comparison
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/bound.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/batched_gaussian.py
	$(BIN)/python benchmarks/shuffling.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/canaries.py
	$(BIN)/python benchmarks/posterior.py
	$(BIN)/python benchmarks/federated.py
	$(BIN)/python benchmarks/leave_one_out.py
	$(BIN)/python benchmarks/membership.py
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/conformance.py

# Each peer in an environment of its own, .venv-peers/, made when it is first asked.
comparison: setup
	$(BIN)/python benchmarks/comparison.py
	$(BIN)/python benchmarks/power.py
	$(BIN)/python benchmarks/one_run.py
	$(BIN)/python benchmarks/zoo_peers.py

calibration: setup
	$(BIN)/python -m tests.calibration
	$(BIN)/python -m tests.calibration.power
	$(BIN)/python -m tests.calibration.poisson

# Every wrong and right program through the checks of conformance; writes docs/zoo.md: two minutes of
# CPU. With SEEDS=100 right ones are run with a hundred seeds too: hours.
zoo: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m epsilometer.zoo $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JOBS),--jobs $(JOBS))

# Goes on where it was stopped; MODULE=binomial runs those of one module anew.
mutation: setup
	OMP_NUM_THREADS=1 CI=1 $(BIN)/python docs/mutation.py $(MODULE)

# Runs them again and writes their outputs; the tests compare.
notebooks: setup
	$(BIN)/python -m tests.notebooks

# Real reports and their pictures, each by its command: four minutes of CPU.
gallery: setup browser
	$(BIN)/python docs/gallery.py

clean:
	rm -rf $(VENV) .venv-peers
