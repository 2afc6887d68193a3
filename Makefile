# Every target sets up what it needs; a second call finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: of the package alone, and of all that developers need.
BASE := $(VENV)/base
READY := $(VENV)/ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# A process per core; threads of theirs would only wait for each other. Each begins with a part of
# the tests that lie together, so that what one module prepares is prepared once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal

.PHONY: demo test test-jax test-lightning test-huggingface test-wandb test-tf test-rounds setup browser check docs slow fuzz bench speed comparison calibration mutation notebooks gallery zoo audit-deps reliability clean

# The package and what it depends on, no extras: half a minute on a fast network.
demo: $(BASE)
	$(BIN)/epsilometer demo

test: setup
	$(PYTEST) -m "not slow"

setup: $(READY)

$(BASE): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $(BASE)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.1"
	$(PIP) -e ".[all]" --group dev
	touch $(BASE) $(READY)

# Pages are tested in a real browser: an installed chromium or Chrome, or this one of Playwright's, in
# your caches. Without any those tests are skipped; where CI is set they fail.
browser: setup
	$(BIN)/python -m playwright install chromium

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/terms.py
	$(BIN)/python docs/site_pages.py
	$(BIN)/zensical build --strict --clean
	$(BIN)/python -m pytest -q --doctest-modules --ignore-glob="*_cuda.py" src README.md docs --doctest-glob="*.md"

# The site, into site/: strict, so that a link or an anchor that leads nowhere fails. Nothing is
# fetched, and search works from the folder.
docs: setup
	$(BIN)/python docs/site_pages.py
	$(BIN)/zensical build --strict --clean
	@echo site/index.html

# Long tests, and properties of the others with more examples.
slow: setup
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile=thorough

# Ten minutes for each of two dozen readers; make fuzz MINUTES=1 for less.
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10)

# Every job at four sizes or more, beside peers and limits, into docs/performance.md and benchmarks/.
bench: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/performance.py

# The pages of single jobs, in benchmarks/.
speed: comparison
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/bound.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/batched_gaussian.py
	$(BIN)/python benchmarks/shuffling.py
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/canaries.py
	$(BIN)/python benchmarks/posterior.py
	$(BIN)/python benchmarks/federated.py
	$(BIN)/python benchmarks/federated_scale.py
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

# Every wrong and right program through the checks of conformance; writes docs/zoo.md and
# tests/zoo/programs.md: two minutes of CPU. With SEEDS=100 right ones are run with a hundred seeds
# too: hours.
zoo: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m epsilometer.zoo $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JOBS),--jobs $(JOBS))

# Frameworks that the main environment does not have: each in an environment of its own, with its
# extra and pinned constraints.
EXTRA = $*
.venv-%/ready: constraints-%.txt pyproject.toml
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -c $< -e ".[$(EXTRA)]" --group framework-$*
	touch $@

FRAMEWORK_PYTEST = OMP_NUM_THREADS=1 .venv-$(1)/bin/python -m pytest -q --doctest-modules

test-jax: .venv-jax/ready
	KERAS_BACKEND=jax $(call FRAMEWORK_PYTEST,jax) tests/integrations/jax_privacy tests/networks/test_jax_trainer.py \
	  tests/networks/test_trainer_contract.py src/epsilometer/integrations/jax_privacy \
	  src/epsilometer/networks/jax_trainer.py src/epsilometer/networks/jax_convolution.py

test-lightning: .venv-lightning/ready
	$(call FRAMEWORK_PYTEST,lightning) tests/integrations/lightning src/epsilometer/integrations/lightning.py

# TensorFlow Privacy installs on Python 3.11 at most.
test-tf: .venv-tf/ready
	$(call FRAMEWORK_PYTEST,tf) tests/integrations/tf_privacy src/epsilometer/integrations/tf_privacy.py

# W&B, and TensorBoard beside it; offline.
test-wandb: .venv-wandb/ready
	$(call FRAMEWORK_PYTEST,wandb) tests/integrations/trackers src/epsilometer/integrations/wandb.py src/epsilometer/integrations/tensorboard.py

# NVIDIA FLARE and pfl-research, whose rounds are audited through IterateWatch: no extra of ours.
.venv-rounds/ready: EXTRA = torch
test-rounds: .venv-rounds/ready
	$(call FRAMEWORK_PYTEST,rounds) tests/integrations/test_rounds.py src/epsilometer/integrations/rounds.py

# Small models are built from configurations; nothing is downloaded.
test-huggingface: .venv-huggingface/ready
	HF_HUB_OFFLINE=1 $(call FRAMEWORK_PYTEST,huggingface) --confcutdir=tests/huggingface tests/huggingface

# Goes on where it was stopped; MODULE=binomial runs those of one module anew.
mutation: setup
	OMP_NUM_THREADS=1 CI=1 $(BIN)/python docs/mutation.py $(MODULE)

# Runs them again and writes their outputs; the tests compare.
notebooks: setup .venv-jax/ready .venv-huggingface/ready
	$(BIN)/python -m tests.notebooks
	.venv-jax/bin/python -m tests.notebooks jax
	.venv-huggingface/bin/python -m tests.notebooks huggingface

# Real reports and their pictures, each by its command: four minutes of CPU.
gallery: setup
	$(BIN)/python docs/gallery.py

# Licences and known vulnerabilities of the locked set, and a CycloneDX bill of materials beside the
# wheel in dist/. Exit code 4 where something could not be checked.
audit-deps: setup
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	$(BIN)/python docs/dependencies.py

# Every kind of fault, counted, into docs/reliability.md and tests/faults: half an hour of CPU.
reliability: setup
	OMP_NUM_THREADS=1 $(BIN)/python docs/reliability.py

clean:
	rm -rf $(VENV) .venv-peers .venv-jax .venv-lightning .venv-huggingface .venv-wandb .venv-tf .venv-rounds
