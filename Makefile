# The README's two commands are `make demo` and `make test`. Each sets up .venv first, with versions from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: demo test quick lint docs release oldest clean

demo: .venv/train
	$(BIN)/looksam compare --dtype float64

test: .venv/dev lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# One to two minutes: lint, types, the architecture, and every rule against the float64 reference.
quick: .venv/dev lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -q tests/test_architecture.py tests/test_package.py tests/rules/test_oracle.py \
		tests/rules/test_conformance.py tests/torch/test_torch_oracle.py -k "not sharded"

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/site: open build/site/index.html. A warning is an error; a broken link is a warning.
docs: .venv/dev
	$(BIN)/python -m sphinx --fail-on-warning --fresh-env --quiet -d build/doctrees docs build/site

# The sdist and the wheel, in dist, built and tested in a clean environment: make release TAG=v0.1.0
release: .venv/dev
	$(BIN)/python tools/check_release.py $(if $(TAG),--tag $(TAG))

# The whole suite with the oldest versions that pyproject.toml allows.
oldest: pyproject.toml constraints-oldest.txt
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python $(PIP) -c constraints-oldest.txt -e '.[dev]'
	.venv-oldest/bin/python -m pytest -n 2 --dist worksteal

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/train .venv/dev: .venv/%: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python $(PIP) -c constraints.txt -e '.[$*]'
	@touch $@

clean:
	rm -rf .venv .venv-oldest build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
