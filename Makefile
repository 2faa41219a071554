# The README's two commands are `make demo` and `make test`. Each sets up .venv first, with versions from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: demo test quick lint docs benchmarks data-given release oldest clean

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

# All of results/benchmarks, and the documents that quote it. Allow an hour or two, with nothing else running:
# make benchmarks DATA=folder-of-cifar100
benchmarks: data-given .venv/dev
	set -e; for name in rules torch_rules one_process throughput convolutions torch_memory; do \
		$(BIN)/python benchmarks/$$name.py; done
	$(BIN)/python benchmarks/startup.py --json results/benchmarks/startup.json
	set -e; for name in trainer scale; do \
		$(BIN)/python benchmarks/$$name.py --data-dir $(DATA) --json results/benchmarks/$$name.json; done
	$(BIN)/python tools/documents.py

data-given:
	@test -d "$(DATA)" || { echo "DATA='$(DATA)' is not a folder; pass DATA=FOLDER, the folder of CIFAR-100" >&2; exit 2; }

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
