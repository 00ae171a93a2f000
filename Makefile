# Each target does all of its own set-up, is safe to run again, and fast the second time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := pyproject.toml constraints.txt

.PHONY: install demo test test-all check bench clean
.DEFAULT_GOAL := install

install: $(VENV)/.installed
demo: install
	$(BIN)/deixis demo --force

# Options for pytest: make test PYTEST_ARGS="-x tests/corpus"
PYTEST_ARGS ?=

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist loadgroup $(PYTEST_ARGS)

check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) test

# All benchmarks that this machine can run, then one table of ratios; DEIXIS_DATA names a folder of real data.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/performance.py run

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis deixis-demo

# Debian and Ubuntu ship Python without ensurepip: where `python3 -m venv` cannot make pip, the package that can is
# installed (as root, or through sudo), or its name is told. The stamp comes last, so that a set-up that was cut off is
# made anew.
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

# Python compiles what is imported when it is; compiling all that is installed takes longer than the rest.
$(VENV)/.installed: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis into $(VENV) …"
	$(PIP) install --no-compile -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis and its test tools into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-check: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis, its test tools and its checkers into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[test,check]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-bench: $(SOURCES) | $(VENV)/.made
	@echo "Installing Deixis, its test tools and what its benchmarks compare it with into $(VENV) …"
	$(PIP) install -c constraints.txt -e '.[test,benchmarks]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test
