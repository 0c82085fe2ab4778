# Everything that a person or CI does with this tree. `make` alone lists the targets.
PYTHON := .venv/bin/python
SOURCES := exporter history alerts dashboard grafana testbed cli

.PHONY: help setup up test check bench bench-engine bench-history bench-alerts compare soak faults format lock docs screenshots clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready  ## make .venv with .venv/bin/poise and all tools

.venv/ready: requirements.lock pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh

up: setup  ## watch this machine, or without an NVIDIA driver a real vLLM on simulated cards: http://127.0.0.1:9748
	@sh scripts/up.sh

test: setup  ## install what the tests need and run all of them: unit, contract, vllm
	@sh scripts/system_packages.sh test
	@$(PYTHON) scripts/stages.py $(STAGES)

check: setup  ## lint, types, import arrows, rules, generated pages
	@.venv/bin/ruff check --quiet $(SOURCES) tests scripts
	@.venv/bin/ruff format --check --quiet $(SOURCES) tests scripts
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports --no-cache --verbose >/dev/null || .venv/bin/lint-imports --no-cache
	@.venv/bin/poise alerts check
	@$(PYTHON) scripts/generate_docs.py --check
	@echo "check: all good"

bench: setup  ## measure, compare with peers, write docs/benchmarks.md
	@sh scripts/system_packages.sh compiler
	@$(PYTHON) scripts/bench_exporter.py --write docs/benchmarks.md

bench-engine: setup  ## TTFT of a loaded vLLM with and without our polling, into docs/benchmarks.md
	@sh scripts/system_packages.sh compiler
	@$(PYTHON) scripts/bench_engine.py --write docs/benchmarks.md

bench-history: setup  ## the history beside Prometheus, into docs/benchmarks.md
	@sh scripts/system_packages.sh test
	@$(PYTHON) scripts/bench_history.py --write docs/benchmarks.md

bench-alerts: setup  ## all rules in `poise up` beside Prometheus, into docs/benchmarks.md
	@sh scripts/system_packages.sh test
	@$(PYTHON) scripts/bench_alerts.py --write docs/benchmarks.md

compare: setup  ## measure the shapes of the testbed side by side, write docs/comparison.md
	@sh scripts/system_packages.sh compiler
	@.venv/bin/poise testbed compare single tp pp pd hybrid --profile chat --repeat 3 --write docs

soak: setup  ## the long runs; results are committed
	@sh scripts/system_packages.sh test
	@POISE_PROMQL_EXAMPLES=10000 $(PYTHON) -m pytest -q tests/contract/test_promql.py
	@POISE_REPLAY_ALL=1 $(PYTHON) -m pytest -q tests/contract/test_evaluator.py
	@$(PYTHON) -m pytest tests/soak -m soak -s

format: setup  ## rewrite sources in the house format
	@.venv/bin/ruff check --fix --quiet $(SOURCES) tests scripts
	@.venv/bin/ruff format $(SOURCES) tests scripts

faults: setup  ## put every fault on a real vLLM under load, write what is said of each into docs/testbed.md
	@sh scripts/system_packages.sh test
	@$(PYTHON) -m pytest -q -s -m soak tests/soak/test_faults.py

lock: setup  ## resolve the dependencies anew into requirements.lock
	@sh scripts/lock.sh

docs: setup  ## write the generated pages of docs/
	@$(PYTHON) scripts/generate_docs.py

screenshots: setup  ## take the pictures of the README from a running `make up`
	@sh scripts/system_packages.sh test
	@$(PYTHON) scripts/screenshots.py

clean:  ## remove what builds and tests left in the tree
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean  ## and the virtual environment
	rm -rf .venv
