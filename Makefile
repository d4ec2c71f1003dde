# make demo: everything set up, the sample network generated, verified, used, and trained.
# make test: everything set up; ruff, mypy, and every test function with a few of its cases, chosen by SEED.
# make test-all: the same with every case. ROOMS=tests/ops runs a part of either.
# make rest: the cases that make test left out, for the same SEED; MINUTES=20 ends it, and counts what was not run.
# make long: the files named tests/*/long_*.py, which are in neither: compiled models, isolated builds, processes.
# make floors: the generator with the oldest packages that pyproject.toml allows, in an environment of its own, in build/.
# make slowest: the suite, and then the fifty tests that take the most of the processor's time.
# make docs: the pages of docs/ as a site, in build/site; a link that leads nowhere is an error.
# Without make (Windows): see CONTRIBUTING.md.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
# Which cases are in the quick tier: other commits run others. `make test SEED=4462e2bd` repeats a run.
SEED ?= $(shell git rev-parse --short=8 HEAD 2>/dev/null || echo 0)
ROOMS ?=
MINUTES ?=
# Many of the long tests wait for other processes: one worker more than the suite has.
LONG_JOBS ?= 3

RUN = $(VENV)/bin/python
SETUP = pyproject.toml setup.py constraints.txt samples/deployed/requirements.txt
SAMPLE = samples/mnist
INSTALL = $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all quick all rest long floors slowest docs style lint clean

demo: $(VENV)/.demo
	$(RUN) -m onnxgen $(SAMPLE)/mnist.onnx -o $(SAMPLE)/model.py
	$(RUN) -m onnxgen verify $(SAMPLE)/mnist.onnx $(SAMPLE)/model.py
	$(RUN) $(SAMPLE)/recognise.py
	$(RUN) -m onnxgen train $(SAMPLE)/model.py --data digits --epochs 2 --name demo

test test-all: style
	$(beside)

test: TIER = quick
test-all: TIER = all
# mypy uses one core for a minute: it runs beside the tests, and is read at their end.
define beside
@mkdir -p build
$(RUN) -m mypy >build/mypy.txt 2>&1 & types=$$!; $(MAKE) --no-print-directory $(TIER); tests=$$?; \
	wait $$types; types=$$?; cat build/mypy.txt; exit $$((tests + types))
endef

style: $(VENV)/.test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check --quiet .

lint: style
	$(RUN) -m mypy

PYTEST = $(RUN) -m pytest -n $(JOBS) --dist worksteal

quick: $(VENV)/.test
	$(PYTEST) --tier quick --seed $(SEED) $(ROOMS)

# In another order for each commit: where time is short, other cases are left out.
rest: $(VENV)/.test
	$(PYTEST) --tier rest --seed $(SEED) --shuffle $(SEED) $(addprefix --minutes=,$(MINUTES)) $(ROOMS)

all: $(VENV)/.test
	$(PYTEST) $(ROOMS)

long: $(VENV)/.test
	$(RUN) -m pytest -n $(LONG_JOBS) --dist worksteal -o python_files="long_*.py"

floors:
	PYTHON=$(PYTHON) bash .ci/floors

slowest: $(VENV)/.test
	$(RUN) -m tests.support.slowest -n $(JOBS)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet
	@echo "the site is in build/site: open build/site/index.html"

clean:
	rm -rf $(VENV) build dist *.egg-info

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the pinned environment needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# Older ones know no groups of dependencies.
$(VENV)/.pip: | $(RUN)
	$(RUN) -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	@touch $@

# The packages in samples/deployed are other people's: without them, the tests of these samples are skipped.
# A stamp says that the environment has what it names; the test environment has what the demo needs, too.
$(VENV)/.demo: $(SETUP) | $(RUN)
	$(INSTALL) -e '.[verify,train]'
	@touch $@

$(VENV)/.test: $(SETUP) | $(VENV)/.pip
	$(INSTALL) -e '.[train]' --group test
	-$(INSTALL) --no-deps -r samples/deployed/requirements.txt
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(SETUP) | $(VENV)/.pip
	$(INSTALL) -e . --group docs
	@touch $@
