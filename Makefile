# Everything runs from the private environment .venv, which each target makes or updates first.
BIN := .venv/bin
ARGS ?=
# Where it is set, each process that a test starts would compile all it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test check fmt chaos bench peers lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="..." passes words on: make test ARGS="-k cron -x"'

setup: ## make or update .venv; the other targets do this themselves
	@PYTHON="$(PYTHON)" tools/setup.sh

run: setup ## start the server: fusee up
	$(BIN)/fusee up $(ARGS)

test: check ## the checks, then every test but the chaos ones
	$(BIN)/python -m pytest -q -m "not chaos" -n 3 --dist loadfile --durations=10 $(ARGS)

check: setup ## lint, format, types, import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## rewrite the code as the linter wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

chaos: setup ## the slow tests: real processes are killed, and heavy ones on every database
	$(BIN)/python -m pytest -q -m chaos --durations=10 $(ARGS)

bench: setup ## measure this machine
	$(BIN)/python -m bench $(ARGS)

peers: setup ## measure other projects on the same work
	$(BIN)/python -m bench.peers $(ARGS)

lock: setup ## choose versions anew and write constraints.txt
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet uv
	PATH="$$PATH:$(CURDIR)/$(BIN)" uv pip compile --quiet --upgrade --no-emit-index-url --no-header --all-extras \
		--group dev --python-version 3.11 --universal pyproject.toml -o constraints.txt

clean: ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +
