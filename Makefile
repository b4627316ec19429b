# The two commands to know are `make run` and `make test`; each builds .venv when it is missing.

PYTHON := $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)
STAMP := .venv/.installed
BIN := .venv/bin

.PHONY: run test slow lint bench check profiles docs clean

run: $(STAMP)
	$(BIN)/allocator solve examples/qwen3-235b-h200.yaml

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 -m 'not slow'

# pytest ends with 5 when no test carries the mark.
slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 -m slow || [ $$? -eq 5 ]

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(STAMP)
	$(BIN)/python -m benchmarks

check: lint test slow

profiles: $(STAMP)
	$(BIN)/python -m tools.build_profiles

docs: $(STAMP)
	$(BIN)/python -m tools.build_docs

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found on PATH; install one and run make again" >&2; exit 1; }
	"$(PYTHON)" -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
