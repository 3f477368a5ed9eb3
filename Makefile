# `make demo` and `make test` set up what they need. `make help` lists the rest.

# The first Python that is new enough; PYTHON=… names another one.
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done),python3)
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST_ARGS ?=

# Spark takes its Java from JAVA_HOME and its workers' Python from PYSPARK_PYTHON; a Spark installed elsewhere stays out.
unexport SPARK_HOME PYTHONPATH PYTHONHOME
WITH_JAVA = JAVA_HOME="$$($(PY) -P quail_spark/java_home.py)" && export JAVA_HOME &&
# All runs here are local; without this Spark fails where the machine's own name can't be looked up.
export SPARK_LOCAL_IP ?= 127.0.0.1
export PYSPARK_PYTHON := $(abspath $(PY))
export OMP_WAIT_POLICY ?= PASSIVE
export PYSPARK_DRIVER_PYTHON := $(abspath $(PY))

.PHONY: help setup model demo test test-matrix lint format doctor docs wheel clean distclean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make setup        virtual environment, package, development tools, Java
setup: $(VENV)/.ready

$(VENV)/.ready: setup.py pyproject.toml constraints.txt tools/bootstrap.py
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here; install Python 3.11 or newer: sudo apt-get install -y python3 python3-venv"; exit 1; }
	@$(PYTHON) tools/bootstrap.py $(VENV)
	@touch $@

## make model        fetch the default model (once)
model: setup
	@$(PY) -m quail_spark.cli fetch-model

## make demo         AI-SQL over the sample tables in examples/, on this machine's CPU or GPU
demo: setup
	@$(PY) -m quail_spark.cli fetch-model
	@$(WITH_JAVA) $(PY) examples/demo.py

## make test         all tests; those of the real model are skipped where it can't be fetched
test: setup
	@$(PY) -m quail_spark.cli fetch-model || [ -z "$$QUAIL_SPARK_REQUIRE_MODEL" ]
	@$(WITH_JAVA) $(PY) -P -m pytest $(PYTEST_ARGS)

## make test-matrix  the connector's tests on the oldest and the newest supported Spark, but for those with JVMs of their own
test-matrix: test-spark40 test-spark43

.PHONY: test-spark40 test-spark43
test-spark40 test-spark43: test-%: .venv-%/.ready setup
	@echo "==> The connector's tests on pyspark $$(.venv-$*/bin/python -c 'import pyspark; print(pyspark.__version__)')"
	@$(WITH_JAVA) QUAIL_SPARK_MATRIX=1 QUAIL_SPARK_GENERATED=$${QUAIL_SPARK_GENERATED:-16} PYSPARK_PYTHON=$(abspath .venv-$*/bin/python) PYSPARK_DRIVER_PYTHON=$(abspath .venv-$*/bin/python) \
		.venv-$*/bin/python -P -m pytest tests/spark $(PYTEST_ARGS)

.venv-%/.ready: constraints-%.txt tools/overlay.py $(VENV)/.ready
	@$(PY) tools/overlay.py .venv-$* constraints-$*.txt
	@touch $@

## make lint         ruff: rules and format
lint: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

## make format       let ruff rewrite
format: setup
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

## make doctor       what is here and what is missing
doctor: setup
	@$(PY) -m quail_spark.cli doctor

## make docs         docs/settings.md from the table of settings
docs: setup
	@$(PY) tools/settings_page.py

## make notebooks    run notebooks/ and keep their outputs
.PHONY: notebooks
notebooks: setup
	@$(PY) -m quail_spark.cli fetch-model
	@$(WITH_JAVA) $(PY) tools/run_notebooks.py notebooks/*.ipynb

## make wheel        dist/*.whl
wheel: setup
	@$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .

## make clean        remove build and run outputs; make distclean: the virtual environments too
clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log artifacts demo-output
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-*
