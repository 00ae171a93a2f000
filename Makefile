# Each target does all of its own set-up, is safe to run again, and fast the second time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := pyproject.toml constraints.txt

.PHONY: install demo test-unit test test-all fuzz check bench clean docs pages plots galleries
.DEFAULT_GOAL := install

install: $(VENV)/.installed
demo: install
	$(BIN)/deixis demo --force

# Options for pytest: make test PYTEST_ARGS="-x tests/corpus"
PYTEST_ARGS ?=
# A file's tests stay in one process, which makes its fixtures once.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
# What needs neither a trained model nor a package beyond the base installation and pytest.
UNIT_TESTS := tests/adapters tests/corpus tests/metrics tests/text tests/test_doctests.py tests/test_files.py tests/test_model.py

# Under a minute: for while you write.
test-unit: $(VENV)/.installed-unit
	$(PYTEST) -m "not slow" $(UNIT_TESTS) $(PYTEST_ARGS)

# Under six minutes on two cores: before you commit.
test: $(VENV)/.installed-test
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

# Everything, also what takes minutes.
test-all: $(VENV)/.installed-test
	$(PYTEST) $(PYTEST_ARGS)

# Damaged and hostile files for every reader, for SECONDS in all; folders of faults are kept in .fuzz.
SECONDS ?= 240
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzzing --seconds $(SECONDS) --keep .fuzz

check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) test

# All benchmarks that this machine can run, then one table of ratios; DEIXIS_DATA names a folder of real data.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/performance.py run

# The site in site/, from the Markdown pages in docs/; fails on dead links (with --quiet, MkDocs would not count them).
docs: pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The generated pages: results of the papers, plots, commands, recipes, settings, API, performance.
pages: plots
	$(BIN)/deixis results pages --out docs/results --force
	$(BIN)/python scripts/write_reference.py
	$(BIN)/python benchmarks/performance.py docs

# The plots in docs/plots, from the files in results/.
plots: $(VENV)/.installed-docs
	$(BIN)/python scripts/write_plots.py

# The galleries on drawn scenes in docs/pictures: trains three demo recipes first, a quarter of an hour on two cores.
galleries: install
	$(BIN)/python scripts/write_galleries.py --work .galleries

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz .galleries deixis-demo

# Debian and Ubuntu ship Python without ensurepip. Where `python3 -m venv` cannot install pip, python3-venv is installed
# (as root, or through sudo), or the message names it. The stamp comes last, so that an interrupted set-up is repeated.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Deixis needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Installing python3-venv …"; \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq python3-venv; \
	  else sudo apt-get update -qq && sudo apt-get install -y -qq python3-venv; fi; } \
	  || { echo "Deixis needs Python's venv module: sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Python compiles modules when they are imported; compiling everything that is installed takes longer than the rest.
$(VENV)/.installed: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis into $(VENV) …"
	$(PIP) install --no-compile -c constraints.txt -e '.[research]'
	@touch $@

$(VENV)/.installed-unit: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis and pytest into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[unit]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-test: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis and its test tools into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-unit

$(VENV)/.installed-check: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis, its test tools and its checkers into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[test,check]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-unit $(VENV)/.installed-test

$(VENV)/.installed-bench: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis, its test tools and what its benchmarks compare it with into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[test,benchmarks]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-unit $(VENV)/.installed-test

$(VENV)/.installed-docs: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis and the site's tools into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[research,docs]'
	@touch $@ $(VENV)/.installed
